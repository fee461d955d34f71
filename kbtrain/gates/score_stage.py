"""``scores.jsonl`` while it is being written: appended batch by batch, so that an interrupted scoring goes on.

Beside it, ``scores.jsonl.progress`` holds what the scores depend on (first line) and the seconds each batch took.

The scoring stage: examples -> chunks -> scores on disk. Whoever scores a chunk, one process writes the file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kbtrain import jsonl, provenance
from kbtrain.errors import UserError
from kbtrain.gates.registry import Score, Source
from kbtrain.provenance import device
from kbtrain.records import GateExample, GateScore, Split


@dataclass(frozen=True)
class Timing:
    """``seconds`` it took to score ``n`` examples of one split for these gates (they share one forward pass).

    ``spent``: requests, samples and tokens of a gate that needs more than one pass a question. ``device``: where it
    was scored, as :func:`kbtrain.provenance.device` names it; empty if that was not noted.
    """

    gates: tuple[str, ...]
    split: Split
    n: int
    seconds: float
    spent: dict[str, int] = field(default_factory=dict)
    device: str = ""


class ScoreFile:
    """Scores on disk, kept if they were made from the same ``inputs`` (names and hashes), else begun anew.

    ``restarted`` says that scores of other inputs were thrown away. A context manager.
    """

    def __init__(self, path: Path, inputs: Mapping[str, Any]) -> None:
        self.path = path
        self._progress_path = path.with_name(path.name + ".progress")
        first = json.dumps(dict(inputs), sort_keys=True)
        same = path.exists() and self._inputs() == first
        self.restarted = path.exists() and not same
        path.parent.mkdir(parents=True, exist_ok=True)
        if same:
            _drop_torn_line(path)
            _drop_torn_line(self._progress_path)
        else:
            path.write_text("", encoding="utf-8")
            self._progress_path.write_text(first + "\n", encoding="utf-8")
        self.done = {(record.gate, record.question_id) for record in jsonl.read(GateScore, path)}
        self._scores = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed in close()
        self._progress = open(self._progress_path, "a", encoding="utf-8")  # noqa: SIM115

    def append(self, scores: Sequence[GateScore], timing: Timing) -> None:
        """Write a batch (those already there are left out), durable when this returns."""
        new = [score for score in scores if (score.gate, score.question_id) not in self.done]
        self._scores.write("".join(jsonl.dump(score) + "\n" for score in new))
        self._progress.write(json.dumps(asdict(timing)) + "\n")
        for file in (self._scores, self._progress):
            file.flush()
            os.fsync(file.fileno())
        self.done |= {(score.gate, score.question_id) for score in new}

    def seconds(self, gate: str, split: Split) -> float:
        """Seconds per example of this gate as measured on one split; 0 before anything was scored."""
        timings = [t for t in self._timings() if gate in t.gates and t.split == split]
        n = sum(t.n for t in timings)
        return sum(t.seconds for t in timings) / n if n else 0.0

    def spent(self, gate: str, split: Split) -> dict[str, float]:
        """Requests, samples and tokens per example of this gate on one split; empty for one request a question."""
        timings = [t for t in self._timings() if gate in t.gates and t.split == split]
        n = sum(t.n for t in timings)
        names = sorted({name for t in timings for name in t.spent})
        return {name: sum(t.spent.get(name, 0) for t in timings) / n for name in names}

    def device(self) -> str:
        """What the scores were made on; this process's device if that was not noted."""
        return ", ".join(sorted({t.device for t in self._timings() if t.device})) or provenance.device()

    def close(self) -> None:
        """Close both files."""
        self._scores.close()
        self._progress.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _inputs(self) -> str | None:
        try:
            with open(self._progress_path, encoding="utf-8") as file:
                return file.readline().rstrip("\n")
        except FileNotFoundError:
            return None

    def _timings(self) -> list[Timing]:
        lines = self._progress_path.read_text(encoding="utf-8").splitlines()[1:]
        return [jsonl.parse(Timing, line, self._progress_path, number) for number, line in enumerate(lines, 2)]


def _drop_torn_line(path: Path) -> None:
    """Cut off what stands after the last line end: the process was killed while writing it."""
    text = path.read_bytes()
    kept = text.rfind(b"\n") + 1
    if kept < len(text):
        os.truncate(path, kept)


def plain_examples(path: Path, split: Split) -> list[GateExample]:
    """The examples without a reference of one split. Raises :class:`UserError` if there is none."""
    found = [e for e in jsonl.read(GateExample, path) if e.reference is None]
    wrong = next((e for e in found if e.split != split), None)
    if wrong is not None:
        raise UserError(f"{path}: example '{wrong.id}' is of split '{wrong.split}', expected '{split}'")
    if not found:
        raise UserError(f"{path}: no example without a reference to score; run data_gen/build.py first")
    return found


@dataclass(frozen=True)
class Chunk:
    """Examples of one split that are scored together: a score can depend on its batch in the last digits."""

    split: Split
    examples: tuple[GateExample, ...]


@dataclass(frozen=True)
class ScoredChunk:
    """A chunk's scores and what they took."""

    scores: tuple[GateScore, ...]
    timing: Timing


Engine = Callable[[Source, Sequence[Chunk]], Iterator[ScoredChunk]]


def chunks_left(
    file: ScoreFile, source: Source, examples: Mapping[Split, Sequence[GateExample]], size: int
) -> list[Chunk]:
    """The chunks of which any score is missing, each as a whole."""
    chunks = [Chunk(s, tuple(rows[i : i + size])) for s, rows in examples.items() for i in range(0, len(rows), size)]
    return [c for c in chunks if any((n, e.question_id) not in file.done for n in source.names for e in c.examples)]


def score_chunks(file: ScoreFile, source: Source, chunks: Sequence[Chunk], engine: Engine) -> Iterator[int]:
    """Score and write; yields how many examples were written each time. Without chunks nothing is opened."""
    if chunks:
        for scored in engine(source, chunks):
            file.append(scored.scores, scored.timing)
            yield scored.timing.n


def local(source: Source, chunks: Sequence[Chunk]) -> Iterator[ScoredChunk]:
    """The engine of one process: it opens the gate itself."""
    model = source.open()
    for chunk in chunks:
        yield scored_chunk(source, model, chunk)


def scored_chunk(source: Source, model: Score, chunk: Chunk) -> ScoredChunk:
    """One chunk by an opened gate, timed."""
    begin, before = time.perf_counter(), source.spent.copy()
    found = model(chunk.examples)
    seconds, spent = time.perf_counter() - begin, dict(source.spent - before)
    scores = [GateScore(e.question_id, n, found[n][i]) for n in source.names for i, e in enumerate(chunk.examples)]
    return ScoredChunk(tuple(scores), Timing(source.names, chunk.split, len(chunk.examples), seconds, spent, device()))
