"""Scores on disk: ``RUN/scores/<gate>.jsonl``, kept as long as what they depend on is the same.

A file is appended batch by batch, so that an interrupted scoring resumes; beside it, ``<gate>.jsonl.progress`` holds
what the scores depend on (first line) and the seconds each batch took.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kbtrain.errors import UserError
from kbtrain.gates.handles import GateHandle, identity_of
from kbtrain.io import jsonl, provenance
from kbtrain.io.artifact import ABSENT, MODEL_FILES, differing
from kbtrain.io.files import append, beside, check_regular_or_absent, cut_torn_line, loads, path_exists, put_in_place
from kbtrain.io.provenance import Noted
from kbtrain.io.text_files import read_text
from kbtrain.models.files_read import folder_of, note
from kbtrain.records import GateScore, Split

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


@dataclass(frozen=True)
class Costs:
    """Costs of stored scores, batch by batch."""

    timings: tuple[Timing, ...]

    @classmethod
    def read_costs(cls, progress: Path) -> Costs:
        """As noted in a file beside the scores."""
        lines = read_text(progress).splitlines()[1:]
        return cls(tuple(jsonl.parse(Timing, line, progress, number) for number, line in enumerate(lines, 2)))

    def seconds(self, gate: str, split: Split) -> float:
        """Seconds per example of this gate as measured on one split; 0 before anything was scored."""
        timings = self._timings_of(gate, split)
        n = sum(t.n for t in timings)
        return sum(t.seconds for t in timings) / n if n else 0.0

    def spent(self, gate: str, split: Split) -> dict[str, float]:
        """Requests, samples and tokens per example of this gate on one split; empty for one request a question."""
        timings = self._timings_of(gate, split)
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

    def _timings_of(self, gate: str, split: Split) -> list[Timing]:
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
        stored = stored_inputs(path, wanted)
        self.restarted = path.exists() and stored is None
        if stored is not None and not provenance.unchanged(path, appended=True):
            raise UserError(f"{path}: was changed since it was scored; delete it to score again")
        self._scores_path = beside(path, ".new") if self.restarted else path
        self._progress_path = _progress(self._scores_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.restarted:
            stored = stored_inputs(self._scores_path, wanted)
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
        self._drop_uncovered_costs()
        self._scores = open(self._scores_path, "a", encoding="utf-8")  # noqa: SIM115 - closed in close()
        self._progress = open(self._progress_path, "a", encoding="utf-8")  # noqa: SIM115

    def append(self, scores: Sequence[GateScore], timing: Timing) -> None:
        """Write a batch (those already there are skipped), durable when this returns.

        Its costs come first: if the process is killed before the scores are whole, the next one can tell.
        """
        new = [score for score in scores if (score.gate, score.question_id) not in self.done]
        written = "".join(jsonl.dump(score) + "\n" for score in new)
        for file, text in ((self._progress, json.dumps(asdict(timing)) + "\n"), (self._scores, written)):
            append(file, text)
        self.done |= {(score.gate, score.question_id) for score in new}

    def _drop_uncovered_costs(self) -> None:
        """Drop the costs of a batch whose scores are not whole: it is scored again, and would count twice."""
        names = {gate for gate, _ in self.done}
        timings = Costs.read_costs(self._progress_path).timings if names else ()
        counts = [len(names.intersection(timing.gates)) * timing.n for timing in timings]
        while sum(counts) > len(self.done):
            counts.pop()
        lines = read_text(self._progress_path).splitlines(keepends=True)
        if len(lines) > len(counts) + 1:
            provenance.write_atomically(self._progress_path, "".join(lines[: len(counts) + 1]))

    def costs(self) -> Costs:
        """Costs of the scores so far."""
        return Costs.read_costs(self._progress_path)

    def finish(self) -> None:
        """Put new scores in the place of those of other inputs, once all of them are there."""
        self.close()
        if self._scores_path != self.path:
            provenance.meta_path(self.path).unlink(missing_ok=True)  # of the older scores
            _progress(self.path).unlink(missing_ok=True)  # scores without noted inputs are computed again
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
    return Costs.read_costs(_progress(score_path(run, gate.name)))


def _progress(path: Path) -> Path:
    return beside(path, ".progress")


def _inputs(path: Path) -> dict[str, str] | None:
    """Inputs that stored scores depend on; None if they were not noted."""
    if not path_exists(_progress(path)):
        return None
    try:
        found = loads(next((line for _, line in jsonl.lines(_progress(path))), "null"))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def stored_inputs(path: Path, wanted: Mapping[str, str]) -> dict[str, str] | None:
    """Inputs of the scores stored in ``path``; None where there are none, or those of other inputs, and for a finished
    file of which a part is gone: what is left may not be whole."""
    stored = _inputs(path)
    if not path.exists() or stored is None or path.stat().st_size < (provenance.meta_of(path).get("bytes") or 0):
        return None
    return stored if _agree(stored, wanted) else None


def _agree(stored: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Nothing that both depend on is different; a split that one of them lacks does not differ, nor do files of
    models that were not noted then, or are not here now.
    """
    for name, before, now in differing(stored, wanted):
        lacking = ABSENT in (before, now) and (name.endswith(".jsonl") or name in (MODEL_FILES, FILES_HERE))
        if not lacking and now != identity_of(str(before)):  # notes of before have the text that an identity is of
            return False
    return True


def _rewrite_inputs(progress: Path, inputs: Mapping[str, str]) -> None:
    lines = read_text(progress).splitlines(keepends=True)[1:]
    provenance.write_atomically(progress, json.dumps(dict(inputs), sort_keys=True) + "\n" + "".join(lines))


def files_of_models(path: Path, models: Sequence[str]) -> dict[str, str]:
    """Hashes of the files of a gate's models, as an input of the scores in ``path``, as far as they are here.

    Whether a folder was moved does not matter: the models' names are skipped.
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


def is_finished(run: Path, gate: GateHandle) -> bool:
    """True if a gate's stored scores are as a scoring that came to its end left them: none is under way or was killed,
    which may leave half a line, and they have not changed since."""
    path = score_path(run, gate.name)
    return path_exists(path) and path_exists(provenance.meta_path(path)) and provenance.unchanged(path)


SCORES = "scores"


def score_path(run: Path, name: str) -> Path:
    """File of a gate's scores in a run folder, by its :class:`GateHandle`'s name."""
    return run / SCORES / f"{name}.jsonl"
