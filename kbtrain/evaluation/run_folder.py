"""Inputs of an evaluation from a run folder: graded answers of dev and test, and the gates' scores of them.

Missing answers and scores are counted and named.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from kbtrain.answers.grading import is_yes_no
from kbtrain.answers.thoughts import counted_answers
from kbtrain.config import Config
from kbtrain.errors import UserError, at
from kbtrain.evaluation.outcomes import AccuracyKind, ConditionOutcome, Resample, grade, has_expected, outcome
from kbtrain.evaluation.scores import Seen, StoredScores, seen_of, stored_scores
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import check_current, check_unchanged, file_sha256, meta_of, sampling_run_of, short_name
from kbtrain.io.store import SampleStore
from kbtrain.labeling.label import Cut
from kbtrain.labeling.verdicts import ByQuestion, check_rules, grading_sources, read_run_verdicts, verdicts_file
from kbtrain.questions.checks import leak_key
from kbtrain.records import CONDITIONS, Condition, Label, Outcome, Question, SampleSet, Split
from kbtrain.show import first_ids

Reason = Literal["missing", "refused", "abstained", "unanswered", "without_gold", "cut"]

# why a question is skipped, for its line in the summary; missing answers are an error unless they are allowed
_REASONS: dict[Reason, str] = {
    "missing": "no greedy answer under llm and rag is stored for {}",
    "abstained": "no verdict on a greedy answer of {}: {}",
    "unanswered": "greedy answers of {} were cut before they began, or are reasoning alone; sample with more "
    "max_thought_tokens",
    "without_gold": "no reference answer to grade by for {}",
    "refused": "the server refused {}",
    "cut": "all samples of {} are empty or end at the token limit (label --cut drop)",
}
_SILENT = {True: "the judge abstained", False: "no rule reads if it is right; data_gen/judge.py can grade it"}


@dataclass
class GradedSplit:
    """The graded answers of some questions: ``outcomes`` where both greedy answers are there and graded; else the
    question's id is in ``skipped``, by the reason."""

    questions: list[Question] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    skipped: dict[Reason, list[str]] = field(default_factory=lambda: {reason: [] for reason in _REASONS})
    graded: dict[Condition, list[ConditionOutcome]] = field(
        default_factory=lambda: {condition: [] for condition in CONDITIONS}
    )

    @property
    def ids(self) -> list[str]:
        """Of the graded questions, in the order of ``outcomes``."""
        return [outcome.question_id for outcome in self.outcomes]


def read_stored(
    store: SampleStore, run: str, questions: Iterable[Question], split: Split, verdicts: ByQuestion | None = None,
    cut: Cut = "keep"
) -> GradedSplit:  # fmt: skip
    """Grade the stored answers of each question of a split; the answers themselves are not kept.

    ``verdicts``: a judge's, see :mod:`kbtrain.labeling.verdicts`; without them each question's own rule grades.
    ``cut``: what the labels did with samples that end at the token limit.
    """
    stored = GradedSplit()
    for question in questions:
        if question.split != split:
            continue
        sets = {condition: store.get(run, question.id, condition) for condition in CONDITIONS}
        judged = None if verdicts is None else verdicts.get(question.id, {})
        reason, graded = _reason(question, sets["llm"], sets["rag"]), {}
        drawn = [rows.samples for of, rows in sets.items() if rows and rows.samples and of != "mask"]
        if reason is None:
            graded = {of: grade(question, rows, judged, cut) for of, rows in sets.items() if rows is not None}
            if graded["llm"].left_out or graded["rag"].left_out:
                reason = "unanswered"
            elif graded["llm"].correct is None or graded["rag"].correct is None:
                reason = "abstained"
            elif cut == "drop" and not all(any(s.finish != "length" for s in counted_answers(of)) for of in drawn):
                reason = "cut"
        if reason is not None:
            stored.skipped[reason].append(question.id)
            continue
        stored.questions.append(question)
        stored.outcomes.append(outcome(question, graded["llm"], graded["rag"]))
        for condition, answer in graded.items():
            stored.graded[condition].append(answer)
    return stored


def _reason(question: Question, llm: SampleSet | None, rag: SampleSet | None) -> Reason | None:
    if not question.answers:
        return "without_gold"
    if any(rows is not None and rows.refused is not None for rows in (llm, rag)):
        return "refused"
    return "missing" if any(rows is None or rows.greedy is None for rows in (llm, rag)) else None


def check_missing(parts: Sequence[GradedSplit], path: Path, allow: bool, judged: bool) -> list[str]:
    """Lines for the summary on what is skipped; :class:`UserError` if answers are missing and that is not allowed."""
    lines = []
    for reason, text in _REASONS.items():
        ids = [name for part in parts for name in part.skipped[reason]]
        if ids and reason == "missing" and not allow:
            problem = text.format(first_ids(ids))
            raise UserError(f"{at(path)}: {problem}; run data_gen/sample.py again, or set allow_missing")
        lines += [f"skipped: {text.format(first_ids(ids), _SILENT[judged])}"] if ids else []
    return lines


def read_labels(path: Path) -> tuple[Label, Iterable[Label]]:
    """The first label (its taus hold for the file) and all of them, streamed.

    Raises :class:`UserError` if empty, changed since it was made, graded by older rules, or made from other questions,
    answers or verdicts than lie beside it.
    """
    check_current(path, *grading_sources(path.parent))
    check_rules(path, meta_of(path).get("label_rule", {}), path.parent / "questions.jsonl")
    stream = jsonl.read(Label, path)
    if (first := next(stream, None)) is None:
        raise UserError(f"{at(path)}: no label in it; run data_gen/label.py first")
    return first, itertools.chain([first], stream)


def check_sampling_run(path: Path, sampling_run: str) -> None:
    """Raise :class:`UserError` for outcomes or results of another sampling run than the one named."""
    if (of := sampling_run_of(path, sampling_run)) != sampling_run:
        raise UserError(f"key 'sampling_run': {at(path)}: computed from run '{of}', not '{sampling_run}'; name that")


def check_labelled(path: Path, sampling_run: str, named: bool = True) -> None:
    """Raise :class:`UserError` for labels of another sampling run than the one whose answers are to be beside them:
    what that one's model masters, and gains by a search, says nothing here. Labels that note none pass.

    ``named``: the run is named by the script's key ``sampling_run``, else by outcomes that are there.
    """
    if (of := sampling_run_of(path, sampling_run)) != sampling_run:
        key, remedy = ("key 'sampling_run': ", "name that, or ") if named else ("", "")
        raise UserError(
            f"{key}{at(path)}: labels of run '{of}', not '{sampling_run}'; {remedy}run "
            f"data_gen/label.py --sampling-run {sampling_run}"
        )


def cut_of(labels: Path, sampling_run: str) -> Cut | None:
    """What labels did with samples that end at the token limit; None for labels of another sampling run."""
    if sampling_run_of(labels, sampling_run) != sampling_run:
        return None
    rule = meta_of(labels).get("label_rule", {})
    cut: Cut = rule.get("cut", {}).get("rule", "keep") if rule.get("by", "samples") == "samples" else "keep"
    return cut


def check_outcomes_labelled(run: Path) -> None:
    """As :func:`check_labelled`, of the labels beside a run folder's outcomes; outcomes that note no run pass."""
    if of := sampling_run_of(run / "outcomes.jsonl", ""):
        check_labelled(run / "labels.jsonl", of, named=False)


def read_outcomes(run: Path) -> list[Outcome]:
    """The graded answers of a run folder.

    Raises :class:`UserError` for a file changed since it was made, graded by older rules, or made from other questions,
    answers or verdicts than there.
    """
    path = run / "outcomes.jsonl"
    check_current(path, *grading_sources(run))
    check_rules(path, (meta := meta_of(path)).get("rules", {}), run / "questions.jsonl")
    labels = run / "labels.jsonl"
    cut = cut_of(labels, sampling_run_of(path)) if labels.exists() else None
    if cut is not None and meta.get("cut", cut) != cut:
        raise UserError(f"{at(path)}: graded by --cut {meta['cut']}, the labels by {cut}; run eval/end_to_end.py")
    judged = verdicts_file(run) is not None
    if cut is not None and "inputs" in meta and judged != ("verdicts.jsonl" in meta["inputs"]):
        raise UserError(f"{at(path)}: graded by another judge than the labels; run eval/end_to_end.py")
    return list(jsonl.read(Outcome, path))


@dataclass(frozen=True)
class RunFolder:
    """Graded answers (``dev``, ``test``), the gates' ``stored`` scores, and what the answers were made with.

    ``questions``: all that count, training questions too; ``dev_entities_in_test``: the dev questions, kept, that ask
    about an entity of test; ``cut``: what became of samples that end at the token limit.
    """

    path: Path
    dev: GradedSplit
    test: GradedSplit
    sampling: Mapping[str, Any]
    notes: Sequence[str]
    stored: StoredScores
    questions: Sequence[Question]
    dev_entities_in_test: int = 0
    cut: Cut = "keep"

    @property
    def files(self) -> list[Path]:
        """Questions, answers, a judge's verdicts and scores: what every evaluation of the run is made from."""
        judged = filter(None, [verdicts_file(self.path)])
        return [self.path / "questions.jsonl", self.path / "samples.db", *judged, *self.stored.files]

    @property
    def model(self) -> str:
        """Name of the model that gave the answers (a folder's last part)."""
        return short_name(self.sampling.get("model", self.path.name))


def check_sampled(runs: Sequence[RunFolder], kind: AccuracyKind) -> None:
    """Raise :class:`UserError` for expected accuracy of a run of which not every test question was sampled."""
    for run in runs:
        if kind == "expected" and not has_expected(run.test.outcomes):
            raise UserError(f"{run.path}: accuracy 'expected': not every test question was sampled; use 'greedy'")


class ResampleConfig(Config):
    """Key of every script whose intervals draw questions or entities."""

    resample: Resample = Field(
        "questions", description="intervals draw questions, or entities with all questions that ask about them"
    )


YesNo = Literal["with", "without", "only"]


class StoredAnswersConfig(Config):
    """Keys of every script that evaluates the stored answers of run folders."""

    sampling_run: str = Field("main", description="name of the sampling run in samples.db")
    allow_missing: bool = Field(False, description="continue although stored answers are missing; they are counted")


def read_run(
    path: Path, sampling_run: str = "main", allow_missing: bool = False, scores: bool = True, yes_no: YesNo = "with"
) -> RunFolder:
    """Read questions.jsonl, samples.db and (if ``scores``) the gates' scores. Raises :class:`UserError`.

    ``yes_no``: what becomes of the questions whose gold answer is yes or no (:func:`is_yes_no`).
    """
    store_file = path / "samples.db"
    check_unchanged(path / "questions.jsonl")
    with SampleStore(store_file, read_only=True) as store:
        sampling, found = store.run_meta(sampling_run), path / "evidence.jsonl"
        if sampling.get("evidence") and path_exists(found) and file_sha256(found) != sampling["evidence"]:
            raise UserError(f"{at(found)}: not the passages that the answers were drawn with; put those back")
        everything = list(jsonl.read(Question, path / "questions.jsonl"))
        questions = [one for one in everything if yes_no == "with" or is_yes_no(one) == (yes_no == "only")]
        tested = {leak_key(question) for question in questions if question.split == "test"}
        leaked = [q.id for q in questions if q.split == "dev" and leak_key(q) in tested]
        left_out = set(leaked)
        questions = [question for question in questions if question.id not in left_out]
        verdicts = read_run_verdicts(path)
        cut = cut_of(path / "labels.jsonl", sampling_run) or "keep"
        dev, test = (read_stored(store, sampling_run, questions, split, verdicts, cut) for split in ("dev", "test"))
    notes = check_missing([dev, test], store_file, allow_missing, verdicts is not None)
    if len(questions) + len(leaked) < len(everything):
        kind = "with a reference answer of yes or no" if yes_no == "without" else "with another reference answer"
        notes += [f"skipped: {len(everything) - len(questions) - len(leaked)} questions {kind}"]
    entities = {entity for question in test.questions for entity in question.entities}
    shared = [question.id for question in dev.questions if not entities.isdisjoint(question.entities)]
    notes += [f"dev shares an entity with test in {first_ids(shared)}"] if shared else []
    notes += [f"skipped: the same question is also in test for {first_ids(leaked)} of dev"] if leaked else []
    if not test.outcomes:
        raise UserError(f"{at(path / 'questions.jsonl')}: no test question with stored answers to evaluate")
    stored = stored_scores(path) if scores else StoredScores(path / "scores")
    return RunFolder(path, dev, test, sampling, notes, stored, questions, len(shared), cut)


def seen_note(runs: Sequence[RunFolder], gates: Sequence[str]) -> str:
    """A sentence for the note below a table of these gates; empty where their training knew no question."""
    by_gate = {gate: sum((seen_of(run.stored.meta, gate) for run in runs), Seen()).mark for gate in gates}
    marks = [f"{gate}{mark}" for gate, mark in by_gate.items() if mark]
    return f" Questions known from training: {'; '.join(marks)}." if marks else ""
