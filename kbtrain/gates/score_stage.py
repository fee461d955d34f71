"""The scoring stage: examples -> chunks -> ``RUN/scores/<gate>.jsonl``, for questions and dialogue turns alike.

Whoever scores a chunk, one process writes the file. It is appended batch by batch, so that an interrupted scoring goes
on; beside it, ``<gate>.jsonl.progress`` holds what the scores depend on (first line) and the seconds each batch took.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kbtrain import jsonl, provenance
from kbtrain.errors import UserError
from kbtrain.files import append, beside, check_regular_or_absent, cut_torn_line, loads, put_in_place, read_text, there
from kbtrain.gate_folder import CARD, Gate, Threshold, set_threshold
from kbtrain.gates.handles import GateHandle, handle
from kbtrain.gates.registry import kind_of, kinds, read_card
from kbtrain.llm.forecast import Forecast, Measured, tokens_of
from kbtrain.llm.prices import Price
from kbtrain.models.files_read import MODEL_FILES, Noted, folder_of, note
from kbtrain.provenance import device
from kbtrain.records import Evidence, Example, GateExample, GateScore, Split, TurnExample

FILES_HERE = f"{MODEL_FILES}_here"  # where the base of a gate is elsewhere: its own folder's


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


@dataclass(frozen=True)
class Costs:
    """Costs of stored scores, batch by batch."""

    timings: tuple[Timing, ...]

    @classmethod
    def of(cls, progress: Path) -> Costs:
        """As noted in a file beside the scores."""
        lines = read_text(progress).splitlines()[1:]
        return cls(tuple(jsonl.parse(Timing, line, progress, number) for number, line in enumerate(lines, 2)))

    def seconds(self, gate: str, split: Split) -> float:
        """Seconds per example of this gate as measured on one split; 0 before anything was scored."""
        timings = self._of(gate, split)
        n = sum(t.n for t in timings)
        return sum(t.seconds for t in timings) / n if n else 0.0

    def spent(self, gate: str, split: Split) -> dict[str, float]:
        """Requests, samples and tokens per example of this gate on one split; empty for one request a question."""
        timings = self._of(gate, split)
        n = sum(t.n for t in timings)
        names = sorted({name for t in timings for name in t.spent})
        return {name: sum(t.spent.get(name, 0) for t in timings) / n for name in names}

    def device(self) -> str:
        """Device on which the scores were computed; this process's device if that was not noted."""
        return ", ".join(sorted({t.device for t in self.timings if t.device})) or provenance.device()

    def facts(self, gates: Sequence[str], splits: Sequence[Split]) -> dict[str, Any]:
        """Seconds and spent of a question by gate and split, and the device, as the scores' meta data have them."""
        return {
            "seconds_per_question": {name: {split: self.seconds(name, split) for split in splits} for name in gates},
            "spent_per_question": {name: {split: self.spent(name, split) for split in splits} for name in gates},
            "device": self.device(),
        }

    def _of(self, gate: str, split: Split) -> list[Timing]:
        return [t for t in self.timings if gate in t.gates and t.split == split]


class ScoreFile:
    """Scores on disk, kept as long as ``inputs`` (names and hashes of what they depend on) are the same.

    Scores of other inputs stay where they are until :meth:`finish` puts the new ones in their place; ``restarted`` says
    that there are such. A context manager.
    """

    def __init__(self, path: Path, inputs: Mapping[str, Any]) -> None:
        self.path = path
        wanted = {name: str(value) for name, value in inputs.items()}
        for file in (path, _progress(path)):
            check_regular_or_absent(file)
        stored = _agreeing(path, wanted)
        if stored is not None and _cut(path):
            stored = None
        self.restarted = path.exists() and stored is None
        if stored is not None and not provenance.unchanged(path, appended=True):
            raise UserError(f"{path}: was changed since it was scored; delete it to score again")
        self._scores_path = beside(path, ".new") if self.restarted else path
        self._progress_path = _progress(self._scores_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.restarted:
            stored = _agreeing(self._scores_path, wanted)
        if stored is not None:
            cut_torn_line(self._scores_path)
            cut_torn_line(self._progress_path)
            if stored != {**stored, **wanted}:  # another split's examples: noted with the others
                _rewrite_inputs(self._progress_path, {**stored, **wanted})
        else:
            provenance.meta_path(self._scores_path).unlink(missing_ok=True)  # of a file that is gone
            self._scores_path.write_text("", encoding="utf-8")
            provenance.write_atomically(self._progress_path, json.dumps(wanted, sort_keys=True) + "\n")
        self.done = {(record.gate, record.question_id) for record in jsonl.read(GateScore, self._scores_path)}
        self._scores = open(self._scores_path, "a", encoding="utf-8")  # noqa: SIM115 - closed in close()
        self._progress = open(self._progress_path, "a", encoding="utf-8")  # noqa: SIM115

    def append(self, scores: Sequence[GateScore], timing: Timing) -> None:
        """Write a batch (those already there are left out), durable when this returns."""
        new = [score for score in scores if (score.gate, score.question_id) not in self.done]
        written = "".join(jsonl.dump(score) + "\n" for score in new)
        for file, text in ((self._scores, written), (self._progress, json.dumps(asdict(timing)) + "\n")):
            append(file, text)
        self.done |= {(score.gate, score.question_id) for score in new}

    def costs(self) -> Costs:
        """Costs of the scores so far."""
        return Costs.of(self._progress_path)

    def finish(self) -> None:
        """Put new scores in the place of those of other inputs, once all of them are there."""
        self.close()
        if self._scores_path != self.path:
            provenance.meta_path(self.path).unlink(missing_ok=True)  # of the older scores
            _progress(self.path).unlink(missing_ok=True)  # scores whose inputs are not noted are made again
            put_in_place(self._scores_path, self.path)
            put_in_place(self._progress_path, _progress(self.path))
            self._scores_path, self._progress_path = self.path, _progress(self.path)

    def close(self) -> None:
        """Close both files."""
        self._scores.close()
        self._progress.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def costs_of(run: Path, gate: GateHandle) -> Costs:
    """Costs of a gate's stored scores."""
    return Costs.of(_progress(score_path(run, gate.name)))


def _progress(path: Path) -> Path:
    return beside(path, ".progress")


def _inputs(path: Path) -> dict[str, str] | None:
    """Inputs that stored scores depend on; None if they were not noted."""
    if not there(_progress(path)):
        return None
    try:
        found = loads(next((line for _, line in jsonl.lines(_progress(path))), "null"))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _agreeing(path: Path, wanted: Mapping[str, str]) -> dict[str, str] | None:
    """Inputs of the scores stored in ``path``; None where there are none, or those of other inputs."""
    stored = _inputs(path)
    return stored if path.exists() and stored is not None and _agree(stored, wanted) else None


def _agree(stored: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Nothing that both depend on is different; a split that one of them lacks is no difference, nor are files of
    models that were not noted then, or are not here now.
    """
    own, before = ({name for name in side if not name.endswith(".jsonl")} for side in (wanted, stored))
    if (before ^ own) - {MODEL_FILES, FILES_HERE}:
        return False
    return all(stored.get(name, value) == value for name, value in wanted.items())


def _rewrite_inputs(progress: Path, inputs: Mapping[str, str]) -> None:
    lines = read_text(progress).splitlines(keepends=True)[1:]
    provenance.write_atomically(progress, json.dumps(dict(inputs), sort_keys=True) + "\n" + "".join(lines))


def _cut(path: Path) -> bool:
    """True for a finished file of which a part is gone: what is left of it may not be whole."""
    size = provenance.meta_of(path).get("bytes")
    return size is not None and path.stat().st_size < size


def files_of_models(path: Path, models: Sequence[str]) -> dict[str, str]:
    """Hashes of the files of a gate's models, as an input of the scores in ``path``, as far as they are here.

    Whether a folder was moved does not matter: the models' names are left out.
    """
    here = [model for model in models if folder_of(model) is not None]
    found = [{name: one["sha256"] for name, one in files.items()} for files in noted_models(path, here).values()]
    if not here:
        return {}
    return {MODEL_FILES if len(here) == len(models) else FILES_HERE: str(sorted(map(str, found)))}


def noted_models(path: Path, models: Sequence[str]) -> dict[str, Noted]:
    """By each model's name its files; those that have not changed since the meta data of ``path`` are not read."""
    before = provenance.meta_of(path).get(MODEL_FILES)
    noted = before if isinstance(before, dict) else {}
    return {model: note(model, noted.get(model)) for model in models}


def plain_examples(path: Path, split: Split) -> list[GateExample]:
    """The examples without a reference of one split. Raises :class:`UserError` if there is none."""
    found = [e for e in jsonl.read(GateExample, path) if e.reference is None]
    wrong = next((e for e in found if e.split != split), None)
    if wrong is not None:
        raise UserError(f"{path}: example '{wrong.id}' is of split '{wrong.split}', expected '{split}'")
    if not found:
        raise UserError(f"{path}: no example without a reference to score; run data_gen/build.py first")
    return found


def attach_hits(examples: Sequence[Example], evidence: Path) -> list[GateExample]:
    """Questions with the passages found for them, for a gate that is asked after the search.

    Raises :class:`UserError` for a question that the file does not have.
    """
    questions = [example for example in examples if isinstance(example, GateExample)]
    wanted = {example.question_id for example in questions}
    found = {row.question_id: row.hits for row in jsonl.read(Evidence, evidence) if row.question_id in wanted}
    missing = next((example.id for example in questions if example.question_id not in found), None)
    if missing is not None:
        raise UserError(f"{evidence}: no passages of question '{missing}'; run data_gen/retrieve.py for it")
    return [replace(example, hits=found[example.question_id]) for example in questions]


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


def chunks_left(
    file: ScoreFile, gate: GateHandle, examples: Mapping[Split, Sequence[Example]], size: int
) -> list[Chunk]:
    """The chunks of which any score is missing, each as a whole."""
    chunks = [Chunk(s, tuple(rows[i : i + size])) for s, rows in examples.items() for i in range(0, len(rows), size)]
    return [c for c in chunks if any((n, scored_id(e)) not in file.done for n in gate.names for e in c.examples)]


def examples_left(
    run: Path, gate: GateHandle, inputs: Mapping[str, str], examples: Mapping[Split, Sequence[Example]]
) -> list[Example]:
    """The examples without a stored score of these inputs; nothing is written."""
    path = score_path(run, gate.name)
    done: set[tuple[str, str]] = set()
    if _agreeing(path, inputs) is not None:
        done = {(record.gate, record.question_id) for record in jsonl.read(GateScore, path)}
    rows = [row for split in examples.values() for row in split]
    return [row for row in rows if any((name, scored_id(row)) not in done for name in gate.names)]


def is_finished(run: Path, gate: GateHandle) -> bool:
    """True if a gate's stored scores are as a scoring that came to its end left them: none is under way or was killed,
    which may leave half a line, and nobody changed them since."""
    path = score_path(run, gate.name)
    return there(path) and there(provenance.meta_path(path)) and provenance.unchanged(path)


def price_of_scores(gate: GateHandle, rows: Sequence[Example], run: Path, measured: int, price: Price) -> list[str]:
    """Requests, tokens, money and time of scoring the rows, a line each; time by so many of them (0: not measured)."""
    passes = [one for row in rows for one in gate.passes(row)]
    taken = (
        measured_scores(with_run(gate, run), rows[:: max(1, len(rows) // measured)][:measured]) if measured else None
    )
    tokens_in = round(sum(tokens_of(one.prompt) for one in passes))
    most = sum(one.tokens for one in passes)
    found = Forecast(len(rows), len(passes), len(rows), tokens_in, most, gate.server, taken)
    return found.lines(price, "examples", "scores")


def measured_scores(gate: GateHandle, some: Sequence[Example]) -> Measured:
    """Score a few examples and throw the scores away; opening the gate is not counted."""
    opened = gate.open()
    begun, before = time.perf_counter(), opened.spent["tokens"]
    gate.scores(opened, some)
    return Measured(len(some), len(some), time.perf_counter() - begun, opened.spent["tokens"] - before)


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


def with_run(gate: GateHandle, run: Path) -> GateHandle:
    """The handle of a gate that takes what the run folder holds for it, such as stored states."""

    def opened() -> Gate:
        made = gate.open()
        made.use_run(run)
        return made

    return replace(gate, open=opened)


def scored_chunk(gate: GateHandle, opened: Gate, chunk: Chunk) -> ScoredChunk:
    """One chunk by an opened gate, timed."""
    begin, before = time.perf_counter(), Counter(opened.spent)
    found = gate.scores(opened, chunk.examples)
    seconds, after = time.perf_counter() - begin, opened.spent
    spent = {name: after[name] - before[name] for name in after}  # 0 stays: no request is less than the usual one
    names = gate.names
    scores = [GateScore(scored_id(e), n, found[n][i]) for n in names for i, e in enumerate(chunk.examples)]
    return ScoredChunk(tuple(scores), Timing(names, chunk.split, len(chunk.examples), seconds, spent, device()))


SCORES = "scores"


def score_path(run: Path, name: str) -> Path:
    """File of a gate's scores in a run folder, by its :class:`GateHandle`'s name."""
    return run / SCORES / f"{name}.jsonl"


def found_gates(run: Path, dtype: str = "auto", device: str = "auto") -> list[GateHandle]:
    """Gates with folders in a run folder (or in its ``gates/``, as in version 0.1), by kind, then name."""
    folders = {path.parent.name: path.parent for pattern in ("gates/*", "*") for path in run.glob(f"{pattern}/{CARD}")}
    order = list(kinds())
    ordered = sorted(folders.values(), key=lambda folder: (order.index(kind_of(folder)[0]), folder.name))
    return [handle(folder, dtype, device) for folder in ordered]


def take_over(run: Path, gate: GateHandle, inputs: Mapping[str, str]) -> int:
    """Copy stored scores of this gate and these inputs from elsewhere into ``RUN/scores``; returns their number.

    Version 0.1 kept the scores of all question gates in ``RUN/scores.jsonl`` and those of turn gates in
    ``RUN/gates/NAME/scores.jsonl``. Recipes leave dev and test scores of turns in the gate's folder.
    """
    target = score_path(run, gate.name)
    if target.exists():
        return 0
    rows: list[GateScore] = []
    timings: list[str] = []
    whole = run / "scores.jsonl"
    if whole.exists() and _same_questions(_inputs(whole) or {}, gate, inputs):
        rows = [row for row in jsonl.read(GateScore, whole) if row.gate in gate.names]
        progress = _progress(whole)
        lines = list(enumerate(read_text(progress).splitlines(keepends=True), 1))[1:]
        timings = [line for n, line in lines if set(jsonl.parse(Timing, line, progress, n).gates) & set(gate.names)]
    for folder in (run / "gates" / gate.name, Path(gate.opening.model if gate.opening else "")):
        own = folder / "scores.jsonl"
        if not rows and own.exists() and _same_turns(own, gate, inputs):
            rows = [replace(row, gate=gate.names[0]) for row in jsonl.read(GateScore, own)]
    if rows:
        provenance.write_atomically(
            _progress(target), json.dumps(dict(inputs), sort_keys=True) + "\n" + "".join(timings)
        )
        jsonl.write(target, rows)
    return len(rows)


def _same_questions(old: Mapping[str, str], gate: GateHandle, inputs: Mapping[str, str]) -> bool:
    """0.1 noted what the scores of all gates depend on in one line, a gate's under its first score's name."""
    wanted = {name: value for name, value in inputs.items() if name not in ("gate", MODEL_FILES, FILES_HERE)}
    opening = gate.opening
    depends = opening.model if opening and opening.prompt else gate.depends  # 0.1 noted a prompted gate's model alone
    return old.get(gate.names[0]) == depends and all(old.get(name) == value for name, value in wanted.items())


def _same_turns(path: Path, gate: GateHandle, inputs: Mapping[str, str]) -> bool:
    turns = inputs.get("turns.jsonl")
    old = _inputs(path) or {}
    if gate.opening and gate.opening.prompt is not None:
        wanted = (turns, gate.opening.model, inputs["dtype"])
        return (old.get("turns"), old.get("model"), old.get("dtype")) == wanted
    noted = provenance.meta_of(path).get("inputs", {}).values()
    return len(gate.names) == 1 and turns is not None and turns in noted


def note_best_f1(folder: Path, gate: GateHandle, scores: Path, dev: Sequence[Example], dev_file: Path) -> None:
    """Note the threshold of the best F1 on labelled dev turns in a gate's card; one that is there stays."""
    known = [turn for turn in dev if isinstance(turn, TurnExample) and turn.label is not None]
    kind, card = kind_of(folder)[1], read_card(folder)
    name = kind.names(card)[0]
    if not known or name in card.thresholds:
        return
    from kbtrain.metrics.dev import best_f1_threshold

    by_id = {row.question_id: row.score for row in jsonl.read(GateScore, scores) if row.gate == gate.names[0]}
    best = best_f1_threshold([float(bool(turn.label)) for turn in known], [by_id[turn.id] for turn in known])
    chosen = Threshold(
        threshold=best.value, rule="best_f1", dev_file_sha256=provenance.file_sha256(dev_file), n_dev=len(known)
    )
    set_threshold(folder, name, chosen)
