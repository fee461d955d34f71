"""A run folder as an evaluation sees it: graded answers of dev and test, and the gates' scores beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kbtrain import jsonl
from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.evaluation.decisions import GateInput
from kbtrain.evaluation.stored import Stored, check_missing, first_ids, read_scores, read_stored, run_verdicts
from kbtrain.provenance import meta_path, read_meta
from kbtrain.records import Outcome, Question, Split
from kbtrain.store import SampleStore

_SPLITS: tuple[Split, Split] = ("dev", "test")


@dataclass(frozen=True)
class RunFolder:
    """Graded answers (``dev``, ``test``), scores by gate and question id, and what the answers were made with.

    ``seconds`` are the measured seconds per question of each gate, where the score file's meta data tell.
    """

    path: Path
    dev: Stored
    test: Stored
    scores: Mapping[str, Mapping[str, float]]
    seconds: Mapping[str, float]
    sampling: Mapping[str, Any]
    notes: Sequence[str]

    @property
    def model(self) -> str:
        """Name of the model that gave the answers (a folder's last part)."""
        return str(self.sampling.get("model", self.path.name)).rstrip("/").rsplit("/", 1)[-1]


def read_run(path: Path, sampling_run: str = "main", allow_missing: bool = False, scores: bool = True) -> RunFolder:
    """Read questions.jsonl, samples.db and (if ``scores``) scores.jsonl. Raises :class:`UserError`."""
    store_file, score_file = path / "samples.db", path / "scores.jsonl"
    with SampleStore(store_file, read_only=True) as store:
        sampling = store.run_meta(sampling_run)
        questions = list(jsonl.read(Question, path / "questions.jsonl"))
        verdicts = run_verdicts(path)
        dev, test = (read_stored(store, sampling_run, questions, split, verdicts) for split in _SPLITS)
    notes = check_missing([dev, test], store_file, allow_missing)
    if not test.outcomes:
        raise UserError(f"{at(path / 'questions.jsonl')}: no test question with stored answers to evaluate")
    found = read_scores(score_file) if scores else {}
    check_same_questions(found, {*(o.question_id for o in (*dev.outcomes, *test.outcomes))}, score_file)
    meta = read_meta(score_file) if scores and meta_path(score_file).exists() else {}
    seconds = {gate: float(by.get("test", 0.0)) for gate, by in meta.get("seconds_per_question", {}).items()}
    return RunFolder(path, dev, test, found, seconds, sampling, notes)


def check_same_questions(scores: Mapping[str, Mapping[str, float]], known: set[str], path: Path) -> None:
    """Raise :class:`UserError` for a gate whose scores are of quite other questions than those evaluated."""
    for gate, by_question in scores.items():
        strangers = [i for i in by_question if i not in known]
        if by_question and len(strangers) == len(by_question):
            raise UserError(
                f"{at(path)}: gate '{gate}' was scored on other questions: none of {first_ids(strangers)} is among "
                f"the {len(known)} evaluated ones; score this run's questions"
            )


def gate_input(runs: Sequence[RunFolder], gate: str, answers_of: Sequence[RunFolder] | None = None) -> GateInput:
    """One gate's scores on the dev and test questions of all runs, in their order.

    ``answers_of``: runs of another model whose test questions are decided by the scores of ``runs`` (a plug-in gate).
    Raises :class:`UserError` for a gate without scores, or without one for some questions (count, first ids).
    """
    test_of = runs if answers_of is None else answers_of
    dev = [_score(runs, gate, outcome) for run in runs for outcome in run.dev.outcomes]
    test = [_score(runs, gate, outcome) for run in test_of for outcome in run.test.outcomes]
    missing = [o.question_id for run in runs for o in run.dev.outcomes if _score(runs, gate, o) is None]
    missing += [o.question_id for run in test_of for o in run.test.outcomes if _score(runs, gate, o) is None]
    where = ", ".join(str(run.path / "scores.jsonl") for run in runs)
    names = {name for run in runs for name in run.scores}
    if gate not in names:
        raise UserError(f"{where}: no scores of gate '{gate}'; {did_you_mean(gate, names)}")
    if missing:
        raise UserError(f"{where}: gate '{gate}' has no score for {first_ids(missing)}; run eval/score.py again")
    seconds = sum(run.seconds.get(gate, 0.0) * len(run.test.outcomes) for run in test_of)
    return GateInput(gate, np.array(dev, float), np.array(test, float), seconds, gate_requests=len(test))


def _score(runs: Sequence[RunFolder], gate: str, outcome: Outcome) -> float | None:
    for run in runs:
        found = run.scores.get(gate, {}).get(outcome.question_id)
        if found is not None:
            return found
    return None
