"""The scoring stage: examples -> chunks -> a gate's scores in ``RUN/scores/<gate>.jsonl``, for questions and turns.

A file is kept as long as what its scores depend on is the same, and appended batch by batch, so that an interrupted
scoring resumes. One process writes it, wherever a chunk is scored. Beside it, ``<gate>.jsonl.key`` notes what the
scores depend on, and ``<gate>.jsonl.progress`` the costs of each batch.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kbtrain.errors import UserError
from kbtrain.gate.card import CARD, Threshold, set_threshold
from kbtrain.gate.gate import Gate
from kbtrain.gates.handles import GateHandle, handle
from kbtrain.gates.registry import kind_of, kinds, read_card
from kbtrain.io import jsonl, provenance
from kbtrain.io.artifact import ABSENT, MODEL_FILES, Records, differing
from kbtrain.io.files import append, beside, check_regular_or_absent, cut_torn_line, path_exists, put_in_place
from kbtrain.io.provenance import FileNotes, device
from kbtrain.llm.forecast import Forecast, Measurement, PriceList, tokens_of
from kbtrain.models.files_read import folder_of, note
from kbtrain.records import Example, GateExample, GateScore, Split, TurnExample

FILES_HERE = f"{MODEL_FILES}_here"  # where the base of a gate is elsewhere: its own folder's


@dataclass(frozen=True)
class Timing:
    """``seconds`` it took to score ``n`` examples of one split for these gates (they share one forward pass).

    ``spent``: requests, samples and tokens of a gate that needs more than one pass a question. ``device``: where it
    was scored, as :func:`kbtrain.io.provenance.device` names it; empty if that was not noted.
    """

    gates: tuple[str, ...]
    split: Split
    n: int
    seconds: float
    spent: dict[str, int] = field(default_factory=dict)
    device: str = ""


def cost_facts(timings: Sequence[Timing], gates: Sequence[str]) -> dict[str, Any]:
    """Means of an example by gate and split, and the devices, as the scores' meta data have them.

    ``spent``: requests, samples and tokens; empty for one request a question. Where no batch notes its device, it is
    this process's.
    """
    seconds: dict[str, dict[str, float]] = {gate: {} for gate in gates}
    spent: dict[str, dict[str, dict[str, float]]] = {gate: {} for gate in gates}
    for gate, split in itertools.product(gates, dict.fromkeys(timing.split for timing in timings)):
        measured = [timing for timing in timings if gate in timing.gates and timing.split == split]
        n = sum(timing.n for timing in measured) or 1
        names = sorted({name for timing in measured for name in timing.spent})
        seconds[gate][split] = sum(timing.seconds for timing in measured) / n
        spent[gate][split] = {name: sum(timing.spent.get(name, 0) for timing in measured) / n for name in names}
    devices = ", ".join(sorted({timing.device for timing in timings if timing.device})) or device()
    return {"seconds_per_question": seconds, "spent_per_question": spent, "device": devices}


class ScoreFile:
    """Scores on disk, kept as long as ``inputs`` (names and hashes of what they depend on) are the same.

    Scores of other inputs stay where they are until :meth:`finish` puts the new ones in their place; ``restarted`` says
    that there are such. A context manager.
    """

    def __init__(self, path: Path, inputs: Mapping[str, Any]) -> None:
        self.path = path
        expected = {name: str(value) for name, value in inputs.items()}
        check_regular_or_absent(path)
        stored = stored_inputs(path, expected)
        self.restarted = path_exists(path) and stored is None
        if stored is not None and not provenance.unchanged(path, appended=True):
            raise UserError(f"{path}: was changed since it was scored; delete it to score again")
        self._scores_path = beside(path, ".new") if self.restarted else path
        if self.restarted:
            stored = stored_inputs(self._scores_path, expected)
        if stored is None:
            for file in (provenance.meta_path(self._scores_path), _costs(self._scores_path), _key(self._scores_path)):
                file.unlink(missing_ok=True)  # of a file that is gone
        elif stored != {**stored, **expected}:  # another split's examples: noted with the others
            _write_key(self._scores_path, {**stored, **expected})
        self._scores = Records(self._scores_path, {**(stored or {}), **expected}, growing=True)
        self.done = {(record.gate, record.question_id) for record in jsonl.read(GateScore, self._scores_path)}
        costs = _costs(self._scores_path)
        costs.touch()
        cut_torn_line(costs)
        self._drop_uncovered_costs()
        self._costs = open(costs, "a", encoding="utf-8")  # noqa: SIM115 - closed in close()

    def append(self, scores: Sequence[GateScore], timing: Timing) -> None:
        """Write a batch (those already there are skipped), durable when this returns."""
        new = [score for score in scores if (score.gate, score.question_id) not in self.done]
        # Costs come first: if the process is killed before the scores are whole, the next one can tell.
        append(self._costs, json.dumps(asdict(timing)) + "\n")
        self._scores.add(*new)
        self.done |= {(score.gate, score.question_id) for score in new}

    def _drop_uncovered_costs(self) -> None:
        """Drop the costs of a batch whose scores are not whole: it is scored again, and would count twice."""
        names = {gate for gate, _ in self.done}
        timings = self.timings()
        counts = [len(names.intersection(timing.gates)) * timing.n for timing in timings] if names else []
        while sum(counts) > len(self.done):
            counts.pop()
        if len(counts) < len(timings):
            lines = (json.dumps(asdict(timing)) + "\n" for timing in timings[: len(counts)])
            provenance.write_atomically(_costs(self._scores_path), "".join(lines))

    def timings(self) -> list[Timing]:
        """Costs of the scores so far, batch by batch."""
        return list(jsonl.read(Timing, _costs(self._scores_path)))

    def finish(self) -> None:
        """Put new scores in the place of those of other inputs, once all of them are there."""
        self.close()
        if self._scores_path != self.path:
            for file in (provenance.meta_path(self.path), _key(self.path)):  # scores without a key are computed again
                file.unlink(missing_ok=True)
            for place in (Path, _costs, _key):
                put_in_place(place(self._scores_path), place(self.path))
            self._scores_path = self.path

    def close(self) -> None:
        """Close both files."""
        self._scores.close()
        self._costs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _costs(path: Path) -> Path:
    return beside(path, ".progress")


def _key(path: Path) -> Path:
    return beside(path, ".key")


def _write_key(path: Path, inputs: Mapping[str, str]) -> None:
    provenance.write_atomically(_key(path), json.dumps(dict(inputs), sort_keys=True))


def stored_inputs(path: Path, expected: Mapping[str, str]) -> dict[str, str] | None:
    """Inputs of the scores stored in ``path``; None where there are none, or those of other inputs, and for a finished
    file of which a part is gone: what is left may not be whole."""
    if not (path_exists(path) and path_exists(_key(path))):
        return None
    stored = jsonl.read_json(_key(path))
    whole = path.stat().st_size >= (provenance.meta_of(path).get("bytes") or 0)
    return stored if whole and _agree(stored, expected) else None


def _agree(stored: Mapping[str, str], expected: Mapping[str, str]) -> bool:
    """Nothing that both depend on is different; a split that one of them lacks does not differ, nor do files of
    models that were not noted then, or are not here now."""
    for name, before, now in differing(stored, expected):
        lacking = ABSENT in (before, now) and (name.endswith(".jsonl") or name in (MODEL_FILES, FILES_HERE))
        if not lacking:
            return False
    return True


def files_of_models(path: Path, models: Sequence[str]) -> dict[str, str]:
    """Hashes of the files of a gate's models, as an input of the scores in ``path``, as far as they are here.

    Whether a folder was moved does not matter: the models' names are skipped.
    """
    local = [model for model in models if folder_of(model) is not None]
    hashes = [{name: entry["sha256"] for name, entry in files.items()} for files in noted_models(path, local).values()]
    if not local:
        return {}
    return {MODEL_FILES if len(local) == len(models) else FILES_HERE: str(sorted(map(str, hashes)))}


def noted_models(path: Path, models: Sequence[str]) -> dict[str, FileNotes]:
    """By each model's name its files; those that have not changed since the meta data of ``path`` are not read."""
    before = provenance.meta_of(path).get(MODEL_FILES) or {}
    return {model: note(model, before.get(model)) for model in models}


def is_finished(run: Path, gate: GateHandle) -> bool:
    """True if a gate's stored scores are as a scoring that came to its end left them: none is under way or was killed,
    which may leave half a line, and they have not changed since."""
    path = score_path(run, gate.name)
    return all(map(path_exists, (path, _key(path), provenance.meta_path(path)))) and provenance.unchanged(path)


SCORES = "scores"


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
    """Examples of one split that are scored together: a score can depend on its batch in the last digits."""

    split: Split
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class ScoredChunk:
    """A chunk's scores and what they took."""

    scores: tuple[GateScore, ...]
    timing: Timing


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
    """The chunks of which any score is missing, each as a whole."""
    chunks = [Chunk(s, tuple(rows[i : i + size])) for s, rows in examples.items() for i in range(0, len(rows), size)]
    return [chunk for chunk in chunks if any(_is_missing(e, gate, file.done) for e in chunk.examples)]


def examples_left(
    run: Path, gate: GateHandle, inputs: Mapping[str, str], examples: Mapping[Split, Sequence[Example]]
) -> list[Example]:
    """The examples without a stored score of these inputs; nothing is written."""
    path = score_path(run, gate.name)
    done: set[tuple[str, str]] = set()
    if stored_inputs(path, inputs) is not None:
        done = {(record.gate, record.question_id) for record in jsonl.read(GateScore, path)}
    return [row for rows in examples.values() for row in rows if _is_missing(row, gate, done)]


def price_of_scores(gate: GateHandle, rows: Sequence[Example], measured: int, prices: PriceList) -> list[str]:
    """Requests, tokens, money and time of scoring the rows, a line each; time by ``measured`` rows (0: none)."""
    passes = [prompt_pass for row in rows for prompt_pass in gate.passes(row)]
    measurement = None
    if measured:  # some examples are scored, and the scores thrown away; opening the gate is not counted
        some, opened = rows[:: max(1, len(rows) // measured)][:measured], gate.open()
        start, before = time.perf_counter(), opened.spent["tokens"]
        gate.scores(opened, some)
        seconds, tokens = time.perf_counter() - start, opened.spent["tokens"] - before
        measurement = Measurement(len(some), len(some), seconds, tokens)
    tokens_in = round(sum(tokens_of(prompt_pass.prompt) for prompt_pass in passes))
    most = sum(prompt_pass.tokens for prompt_pass in passes)
    forecast = Forecast(len(rows), len(passes), len(rows), tokens_in, most, gate.server, measurement)
    return forecast.lines(prices, "examples", "scores")


def score_chunks(file: ScoreFile, gate: GateHandle, chunks: Sequence[Chunk], engine: Engine) -> Iterator[int]:
    """Score and write; yields how many examples were written each time. Without chunks nothing is opened."""
    if chunks:
        for scored in engine(gate, chunks):
            file.append(scored.scores, scored.timing)
            yield scored.timing.n


def local(gate: GateHandle, chunks: Sequence[Chunk]) -> Iterator[ScoredChunk]:
    """The engine of one process: it opens the gate itself."""
    opened = gate.open()
    for chunk in chunks:
        yield scored_chunk(gate, opened, chunk)


def scored_chunk(gate: GateHandle, opened: Gate, chunk: Chunk) -> ScoredChunk:
    """One chunk by an opened gate, timed."""
    begin, before = time.perf_counter(), Counter(opened.spent)
    values = gate.scores(opened, chunk.examples)
    seconds, after = time.perf_counter() - begin, opened.spent
    spent = {name: after[name] - before[name] for name in after}  # 0 stays: no request is less than the usual one
    names = gate.names
    scores = [GateScore(scored_id(e), n, values[n][i]) for n in names for i, e in enumerate(chunk.examples)]
    return ScoredChunk(tuple(scores), Timing(names, chunk.split, len(chunk.examples), seconds, spent, device()))


def gates_of_run(run: Path, dtype: str = "auto", device: str = "auto", states: str | None = None) -> list[GateHandle]:
    """Gates with folders in a run folder, by kind, then name."""
    order, folders = list(kinds()), (path.parent for path in run.glob(f"*/{CARD}"))
    ordered = sorted(folders, key=lambda folder: (order.index(kind_of(folder)[0]), folder.name))
    return [handle(folder, dtype, device, states=states) for folder in ordered]


def note_best_f1(folder: Path, gate: GateHandle, scores: Path, dev: Sequence[Example], dev_file: Path) -> None:
    """Note the threshold of the best F1 on labelled dev turns in a gate's card; one that is there stays."""
    labelled = [turn for turn in dev if isinstance(turn, TurnExample) and turn.label is not None]
    card = read_card(folder)
    name = card.names()[0]
    if not labelled or name in card.thresholds:
        return
    from kbtrain.metrics.turns import best_f1_threshold

    by_id = {row.question_id: row.score for row in jsonl.read(GateScore, scores) if row.gate == gate.names[0]}
    best = best_f1_threshold([float(bool(turn.label)) for turn in labelled], [by_id[turn.id] for turn in labelled])
    chosen = Threshold(
        threshold=best.value, rule="best_f1", dev_file_sha256=provenance.file_sha256(dev_file), n_dev=len(labelled)
    )
    set_threshold(folder, name, chosen)
