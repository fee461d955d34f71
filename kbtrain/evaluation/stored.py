"""From the files of a run to the inputs of an evaluation; what is missing is counted and named."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kbtrain import jsonl
from kbtrain.answers.grading import Verdicts
from kbtrain.errors import UserError, at
from kbtrain.evaluation.outcomes import ConditionOutcome, grade, outcome
from kbtrain.labeling.verdicts import QuestionVerdicts
from kbtrain.provenance import meta_path, read_meta
from kbtrain.records import CONDITIONS, Condition, GateScore, Label, Outcome, Question, Split
from kbtrain.store import SampleStore

ByQuestion = Mapping[str, Verdicts]


@dataclass
class Stored:
    """The graded answers of some questions: ``outcomes`` where both greedy answers are there and graded.

    Else they are in ``missing``, or in ``abstained`` where a judge would not say.
    """

    questions: list[Question] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    abstained: list[str] = field(default_factory=list)
    graded: dict[Condition, list[ConditionOutcome]] = field(
        default_factory=lambda: {condition: [] for condition in CONDITIONS}
    )


def read_stored(
    store: SampleStore, run: str, questions: Iterable[Question], split: Split, verdicts: ByQuestion | None = None
) -> Stored:
    """Grade the stored answers of each question of a split; the answers themselves are not kept.

    ``verdicts``: a judge's, see :func:`run_verdicts`; without them each question's own rule grades.
    """
    found = Stored()
    for question in questions:
        if question.split != split:
            continue
        sets = {condition: store.get(run, question.id, condition) for condition in CONDITIONS}
        said = None if verdicts is None else verdicts.get(question.id, {})
        graded = {condition: grade(question, made, said) for condition, made in sets.items() if made is not None}
        if any(made is None or made.greedy is None for made in (sets["llm"], sets["rag"])):
            found.missing.append(question.id)
            continue
        if graded["llm"].correct is None or graded["rag"].correct is None:
            found.abstained.append(question.id)
            continue
        found.questions.append(question)
        found.outcomes.append(outcome(question, graded["llm"], graded["rag"]))
        for condition, one in graded.items():
            found.graded[condition].append(one)
    return found


def run_verdicts(run: Path) -> ByQuestion | None:
    """The judge's verdicts of a run folder if its labels were made with them: what grades labels grades outcomes too.

    None where each question's own rule graded the labels, or there are none.
    """
    labels = run / "labels.jsonl"
    if not meta_path(labels).exists() or not read_meta(labels).get("label_rule", {}).get("judge"):
        return None
    return {record.question_id: record.right for record in jsonl.read(QuestionVerdicts, run / "verdicts.jsonl")}


def check_missing(found: Sequence[Stored], path: Path, allow: bool) -> list[str]:
    """Lines for the summary on what is left out; :class:`UserError` if answers are missing and that is not allowed."""
    missing = [i for part in found for i in part.missing]
    abstained = [i for part in found for i in part.abstained]
    unjudged = [f"left out: the judge abstained from the greedy answer of {first_ids(abstained)}"] if abstained else []
    if not missing:
        return unjudged
    note = f"no greedy answer under llm and rag is stored for {first_ids(missing)}"
    if not allow:
        raise UserError(f"{at(path)}: {note}; run data_gen/sample.py again, or set allow_missing")
    return [f"left out: {note}", *unjudged]


def first_ids(ids: Sequence[str], shown: int = 3) -> str:
    """ "3 questions (a, b, c)" or "7 questions (a, b, c, ...)"."""
    more = ", ..." if len(ids) > shown else ""
    return f"{len(ids)} question{'s' * (len(ids) != 1)} ({', '.join(ids[:shown])}{more})"


def read_scores(path: Path) -> dict[str, dict[str, float]]:
    """Scores by gate and question id. Raises :class:`UserError` for a score that is no number or stands there twice."""
    scores: dict[str, dict[str, float]] = defaultdict(dict)
    for number, record in jsonl.read_numbered(GateScore, path):
        if record.score - record.score != 0:  # infinite or not a number
            raise UserError(f"{at(path, number, 'score')}: expected a finite number, found {record.score}")
        if record.question_id in scores[record.gate]:
            raise UserError(
                f"{at(path, number)}: second score of gate '{record.gate}' for question '{record.question_id}'"
            )
        scores[record.gate][record.question_id] = record.score
    return dict(scores)


def in_order(gate: str, scores: Mapping[str, float], outcomes: Sequence[Outcome], path: Path) -> list[float]:
    """The scores of these questions. Raises :class:`UserError` naming how many are missing, and the first of them."""
    missing = [o.question_id for o in outcomes if o.question_id not in scores]
    if missing:
        raise UserError(f"{at(path)}: gate '{gate}' has no score for {first_ids(missing)}; run eval/score.py again")
    return [scores[o.question_id] for o in outcomes]


def read_labels(path: Path) -> tuple[Label, Iterable[Label]]:
    """The first label (its taus hold for the file) and all of them, streamed. Raises :class:`UserError` if empty."""
    stream = jsonl.read(Label, path)
    first = next(stream, None)
    if first is None:
        raise UserError(f"{at(path)}: no label in it; run data_gen/label.py first")
    return first, itertools.chain([first], stream)
