"""The scoring stage: examples -> chunks -> a gate's scores in ``RUN/scores/<gate>.jsonl``, for questions and turns.

A file is kept as long as what its scores depend on is the same. Scored chunks grow in ``<gate>.jsonl.chunks`` until all
are there, so that an interrupted scoring resumes. One process writes them, wherever a chunk is scored.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from kbtrain.errors import UserError
from kbtrain.gate.card import CARD
from kbtrain.gate.gate import Gate
from kbtrain.gates.handles import GateHandle, handle
from kbtrain.gates.registry import kind_points
from kbtrain.io import jsonl
from kbtrain.io.files import beside, check_regular, path_exists
from kbtrain.io.provenance import (
    ABSENT,
    MODEL_FILES,
    Records,
    device,
    differing,
    is_resumable,
    meta_of,
    meta_path,
    note_unwhole,
    unchanged,
    write_meta,
)
from kbtrain.models.files_read import folder_of, hashes_of
from kbtrain.records import Example, GateExample, GateScore, Split, TurnExample

FILES_HERE = f"{MODEL_FILES}_here"  # where the base of a gate is elsewhere: its own folder's


@dataclass(frozen=True)
class Timing:
    """``seconds`` it took to score ``n`` examples of one split for these gates (they share one forward pass).

    ``spent``: requests, samples and tokens of a gate that needs more than one pass a question. ``device``: where it
    was scored, as :func:`kbtrain.io.provenance.device` names it; empty if that was not noted. ``alone``: seconds of an
    example that is asked by itself, the median of some; None: not measured.
    """

    gates: tuple[str, ...]
    split: Split
    n: int
    seconds: float
    spent: dict[str, int] = field(default_factory=dict)
    device: str = ""
    alone: float | None = None


def cost_facts(timings: Sequence[Timing], gates: Sequence[str], before: Mapping[str, Any]) -> dict[str, Any]:
    """Means of an example by gate and split, and the devices, as the scores' metadata have them.

    ``spent``: requests, samples and tokens; empty for one request a question. ``before``: facts of the splits that were
    scored earlier. Where no batch notes its device, it is this process's.
    """
    seconds, spent, alone = dict[str, float](), dict[str, dict[str, float]](), dict[str, float]()
    for split in dict.fromkeys(timing.split for timing in timings):
        measured = [timing for timing in timings if timing.split == split]
        n = sum(timing.n for timing in measured)
        names = sorted({name for timing in measured for name in timing.spent})
        seconds[split] = sum(timing.seconds for timing in measured) / n
        spent[split] = {name: sum(timing.spent.get(name, 0) for timing in measured) / n for name in names}
        if timed := [timing.alone for timing in measured if timing.alone is not None]:
            alone[split] = timed[-1]
    devices = {name for timing in timings for name in timing.device.split(", ") if name}
    devices |= set(before["device"].split(", ")) if before else set()
    facts = {"seconds_per_question": seconds, "spent_per_question": spent, "seconds_alone": alone}
    return {
        **{name: {gate: before.get(name, {}).get(gate, {}) | now for gate in gates} for name, now in facts.items()},
        "device": ", ".join(sorted(devices)) or device(),
    }


@dataclass(frozen=True)
class ScoredChunk:
    scores: tuple[GateScore, ...]
    timing: Timing


class ScoreFile(AbstractContextManager["ScoreFile"]):
    """Scores on disk, kept as long as ``inputs`` (names and hashes of what they depend on) are the same.

    Scores of other inputs stay where they are until :meth:`finish` puts the new ones in their place; ``restarted`` says
    that there are such.
    """

    def __init__(self, path: Path, inputs: Mapping[str, str]) -> None:
        self.path, self._inputs = path, dict(inputs)
        if path_exists(path):
            check_regular(path)
        stored = stored_scores(path, inputs)
        self.restarted = path_exists(path) and stored is None
        self._stored, self._before = stored or [], {} if stored is None else meta_of(path)
        chunks = chunks_path(path)
        self._file: Records | None = None  # opened by the first chunk: chunks of other inputs stay until then
        self._chunks: list[ScoredChunk] = []
        if is_resumable(chunks, beside(chunks, ".key"), self._inputs):
            self._chunks = list(jsonl.read(ScoredChunk, chunks))
        self.done = {(row.gate, row.question_id) for row in self._rows()}

    def _rows(self) -> Iterator[GateScore]:
        """All scores, those of chunks once."""
        stored = {(row.gate, row.question_id): row for row in self._stored}
        for chunk in self._chunks:
            for row in chunk.scores:
                stored.setdefault((row.gate, row.question_id), row)
        yield from stored.values()

    def append(self, chunk: ScoredChunk) -> None:
        """Write a chunk, durable when this returns."""
        if self._file is None:
            self._file = Records(chunks_path(self.path), self._inputs, growing=True)
        self._file.add(chunk)
        self._chunks.append(chunk)
        self.done |= {(row.gate, row.question_id) for row in chunk.scores}

    def finish(
        self, stage: str, config: BaseModel, files: Sequence[Path], started: float, names: Sequence[str], **facts: Any
    ) -> None:
        """Write the scores, once all of them are there, and their metadata with ``facts`` and costs by ``names``."""
        self.close()
        key = {**self._before.get("key", {}), **self._inputs}
        costs = cost_facts([chunk.timing for chunk in self._chunks], names, self._before)
        if self._chunks or not self._before:
            # after a kill the rows that were there are known as before, and new ones by what they depend on
            note_unwhole(self.path, {**self._before, "key": key} if self._before else {})
            jsonl.write(self.path, self._rows())
        of_splits = ("asked", "trained_on", "seen")
        merged: dict[str, Any] = {n: _merge_facts(v, facts.get(n)) for n, v in self._before.items() if n in of_splits}
        extra = {**costs, **facts, "key": key, **merged}
        write_meta(self.path, stage=stage, config=config, inputs=files, extra=extra, started=started)
        if self._chunks:
            for path in (chunks_path(self.path), beside(chunks_path(self.path), ".key")):
                path.unlink()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _merge_facts(old: Any, new: Any) -> Any:
    """Facts of some splits beside those of others that were scored earlier."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{name: _merge_facts(old.get(name), fact) for name, fact in new.items()}}
    return old if new is None else new


def chunks_path(path: Path) -> Path:
    """File of the chunks that are scored and not yet in ``path``."""
    return beside(path, ".chunks")


def stored_scores(path: Path, inputs: Mapping[str, str]) -> list[GateScore] | None:
    """The scores in ``path``; None where there are none, or those of other inputs.

    Raises :class:`UserError` for a file that was changed, or that an older version made.
    """
    meta = meta_of(path) if path_exists(path) else {}
    if meta.get("stage") in ("score", "score_reference") and "key" not in meta:
        raise UserError(f"{path}: made by an older version of kbtrain; delete it and run again")
    if "key" not in meta or not _agree(meta["key"], inputs):
        return None
    if not unchanged(path):
        raise UserError(f"{path}: was changed since it was scored; delete it to score again")
    return list(jsonl.read(GateScore, path))


def _agree(stored: Mapping[str, str], expected: Mapping[str, str]) -> bool:
    """Nothing that both depend on is different; a split that one of them lacks does not differ, nor do files of
    models that were not noted then, or are not here now."""
    return all(
        ABSENT in (before, now) and (name.endswith(".jsonl") or name in (MODEL_FILES, FILES_HERE))
        for name, before, now in differing(stored, expected)
    )


def files_of_models(models: Sequence[str]) -> dict[str, str]:
    """Hashes of the files of a gate's models, as an input of its scores, as far as they are here.

    Whether a folder was moved does not matter: the models' names are skipped.
    """
    local = [model for model in models if folder_of(model) is not None]
    if not local:
        return {}
    return {MODEL_FILES if len(local) == len(models) else FILES_HERE: str(sorted(str(hashes_of(m)) for m in local))}


SCORES = "scores"
ALONE = 5  # test examples that are timed alone, as a user's question comes; bills read those times only


def score_path(run: Path, name: str) -> Path:
    """File of a gate's scores in a run folder, by its :class:`GateHandle`'s name."""
    return run / SCORES / f"{name}.jsonl"


def plain_examples(path: Path, split: Split) -> list[GateExample]:
    """The examples without a reference of one split. Raises :class:`UserError` without any."""
    examples = [e for e in jsonl.read(GateExample, path) if e.reference is None]
    wrong = next((e for e in examples if e.split != split), None)
    if wrong is not None:
        raise UserError(f"{path}: example '{wrong.id}' is of split '{wrong.split}', expected '{split}'")
    if not examples:
        raise UserError(f"{path}: no example without a reference to score; run data_gen/build.py first")
    return examples


@dataclass(frozen=True)
class Chunk:
    """Examples of one split that are scored together: a score can depend on its batch in the last digits.

    ``alone``: as many of them are asked again, each by itself, and timed.
    """

    split: Split
    examples: tuple[Example, ...]
    alone: int = 0


Engine = Callable[[GateHandle, Sequence[Chunk]], Iterator[ScoredChunk]]


def scored_id(example: Example) -> str:
    """The id that a score is stored under: the question's, or the turn's."""
    return example.id if isinstance(example, TurnExample) else example.question_id


Done = Set[tuple[str, str]]  # scores that are stored: their gate's name, and the id


def _is_missing(example: Example, gate: GateHandle, done: Done) -> bool:
    return any((name, scored_id(example)) not in done for name in gate.names)


def chunks_left(
    file: ScoreFile, gate: GateHandle, examples: Mapping[Split, Sequence[Example]], size: int
) -> list[Chunk]:
    """The chunks of which any score is missing, each as a whole; some of test's first one are timed alone."""
    chunks = [
        Chunk(split, tuple(rows[i : i + size]), ALONE if split == "test" and i == 0 else 0)
        for split, rows in examples.items()
        for i in range(0, len(rows), size)
    ]
    return [chunk for chunk in chunks if any(_is_missing(e, gate, file.done) for e in chunk.examples)]


def is_scored(
    run: Path, gate: GateHandle, inputs: Mapping[str, str], examples: Mapping[Split, Sequence[Example]]
) -> bool:
    """True if a scoring of these inputs that came to its end left a score of every example."""
    path = score_path(run, gate.name)
    if not all(map(path_exists, (path, meta_path(path)))) or path_exists(chunks_path(path)):
        return False
    done = {(row.gate, row.question_id) for row in stored_scores(path, inputs) or ()}
    return not any(_is_missing(row, gate, done) for rows in examples.values() for row in rows)


def score_chunks(file: ScoreFile, gate: GateHandle, chunks: Sequence[Chunk], engine: Engine) -> Iterator[int]:
    """Score and write; yields how many examples were written each time. Without chunks nothing is opened."""
    if chunks:
        for scored in engine(gate, chunks):
            file.append(scored)
            yield scored.timing.n


def local(gate: GateHandle, chunks: Sequence[Chunk]) -> Iterator[ScoredChunk]:
    """The engine of one process: it opens the gate itself."""
    opened = gate.open()
    for chunk in chunks:
        yield scored_chunk(gate, opened, chunk)


def scored_chunk(gate: GateHandle, opened: Gate, chunk: Chunk) -> ScoredChunk:
    """One chunk by an opened gate, timed; what is asked alone is not counted among what was spent."""
    begin, before = time.perf_counter(), Counter(opened.spent)
    values = gate.scores(opened, chunk.examples)
    seconds, after = time.perf_counter() - begin, opened.spent
    spent = {name: after[name] - before[name] for name in after}  # 0 stays: no request is less than the usual one
    names = gate.names
    scores = [GateScore(scored_id(e), n, values[n][i]) for n in names for i, e in enumerate(chunk.examples)]
    n_alone = 0 if gate.server else chunk.alone  # a server is paid for each request
    alone = [seconds_of(gate, opened, example) for example in chunk.examples[:n_alone]]
    took = statistics.median(alone) if alone else None
    return ScoredChunk(tuple(scores), Timing(names, chunk.split, len(chunk.examples), seconds, spent, device(), took))


def seconds_of(gate: GateHandle, opened: Gate, example: Example) -> float:
    begin = time.perf_counter()
    gate.scores(opened, [example])
    return time.perf_counter() - begin


def gates_of_run(run: Path, dtype: str = "auto", device: str = "auto", states: str | None = None) -> list[GateHandle]:
    """Gates with folders in a run folder, by kind, then name."""
    gates = [handle(path.parent, dtype, device, states=states) for path in run.glob(f"*/{CARD}")]
    order = list(kind_points())
    return sorted(gates, key=lambda gate: (order.index(gate.card.kind) if gate.card else 0, gate.name))
