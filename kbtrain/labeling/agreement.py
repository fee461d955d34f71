"""Agreement of judges with people, on a small file of answers that people graded; and of two samplers.

Two samplers answer the same questions and are compared question by question. Mean mastery is the quantity of interest
and is coarse; the mean log-probability of an answer shifts at once when one of them filters, penalises or cools and the
other does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator

from kbtrain.answers.grading import is_correct, is_empty
from kbtrain.arrays import Floats
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.labeling.judges import Judge
from kbtrain.metrics.significance import Delta, wilson
from kbtrain.questions.reading.rows import plain
from kbtrain.records import Condition, Grading, Language, Question, SampleSet

Text = Annotated[str, BeforeValidator(plain)]  # a number is read as people write it


@dataclass(frozen=True)
class LabelledAnswer:
    """One line of the file: an answer, the gold answers, and whether a person calls it right."""

    id: Text
    answers: tuple[Text, ...]
    prediction: Text
    right: bool
    question: str = ""
    language: Language = "en"
    grading: Grading = "contains"
    options: tuple[Text, ...] = ()

    def as_question(self) -> Question:
        form: Literal["open", "choice"] = "choice" if self.options else "open"
        return Question(
            self.id, self.question or self.id, self.answers, "dev", "labelled", self.language, form, self.grading,
            self.options,
        )  # fmt: skip


@dataclass(frozen=True)
class Agreement:
    """One judge against people. Accuracy and kappa are over the answers it judged; ``n_abstained`` is listed beside
    them.

    ``accuracy_all`` counts every abstention as a disagreement. ``kappa`` (Cohen) is None if both sides know one class
    only. ``false_right``: the judge says right, people say wrong.
    """

    judge: str
    n: int
    n_abstained: int
    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None
    accuracy_all: float
    kappa: float | None
    false_right: int
    false_wrong: int


def read_labelled(path: Path) -> list[LabelledAnswer]:
    """Raises :class:`UserError` for a broken record, an id twice, no record, or a record without a gold answer."""
    found: dict[str, LabelledAnswer] = {}
    for number, row in jsonl.read_numbered(LabelledAnswer, path):
        if row.id in found:
            raise UserError(f"{at(path, number, 'id')}: duplicate '{row.id}'")
        if not row.answers or any(map(is_empty, row.answers)):
            raise UserError(f"{at(path, number, 'answers')}: no answer, or an empty one")
        found[row.id] = row
    if not found:
        raise UserError(f"{at(path)}: no labelled answers in it")
    return list(found.values())


def agreement(judge: Judge, rows: Sequence[LabelledAnswer]) -> Agreement:
    """Let a judge grade what people have graded; multiple choice is graded by its own rule, as in labels."""
    cases = [(row.as_question(), row.prediction) for row in rows]
    judged = iter(judge.judge([case for case in cases if case[0].grading != "option"]))
    opinions = [is_correct(*case) if case[0].grading == "option" else next(judged).right for case in cases]
    pairs = [(row.right, said) for row, said in zip(rows, opinions, strict=True) if said is not None]
    same = sum(human == said for human, said in pairs)
    low, high = wilson(same, len(pairs)) if pairs else (None, None)
    return Agreement(
        judge=judge.name,
        n=len(rows),
        n_abstained=len(rows) - len(pairs),
        accuracy=same / len(pairs) if pairs else None,
        accuracy_low=low,
        accuracy_high=high,
        accuracy_all=same / len(rows),
        kappa=_kappa(pairs),
        false_right=sum(said and not human for human, said in pairs),
        false_wrong=sum(human and not said for human, said in pairs),
    )


def _kappa(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    """Undefined (0 / 0) where both sides give the same single class throughout."""
    if len({value for pair in pairs for value in pair}) < 2:
        return None
    from sklearn.metrics import cohen_kappa_score

    return float(cohen_kappa_score(*zip(*pairs, strict=True)))


def line(made: Agreement) -> str:
    """One line for a terminal."""
    if made.accuracy is None:
        return f"{made.judge}: abstained from all {made.n} labelled answers"
    kappa = "undefined" if made.kappa is None else f"{made.kappa:.3f}"
    return (
        f"{made.judge}: agrees with people in {made.accuracy:.3f} [{made.accuracy_low:.3f}, {made.accuracy_high:.3f}] "
        f"of {made.n - made.n_abstained} labelled answers, kappa {kappa}; {made.false_right} wrong ones called right, "
        f"{made.false_wrong} right ones called wrong; abstained from {made.n_abstained} of {made.n}"
    )


MEASURES = ("mastery", "logprob", "n_tokens")


@dataclass(frozen=True)
class AnswerMeasures:
    """Per question: mean mastery, mean log-probability (nats) and length (tokens) of an answer, and the greedy text."""

    values: Floats  # (questions, 3), in the order of MEASURES
    greedy: tuple[str | None, ...]

    def mean(self, measure: str) -> float:
        """Over the questions."""
        return float(self.values[:, MEASURES.index(measure)].mean())


def answers(store: SampleStore, run: str, questions: Iterable[Question], condition: Condition) -> AnswerMeasures:
    """Measures of one run's answers; ``KeyError`` for a question without answers."""
    found = []
    for question in questions:
        made = store.get(run, question.id, condition)
        if made is None:
            raise KeyError(f"{question.id} under {condition}")
        found.append((_values(question, made), made.greedy.text if made.greedy else None))
    return AnswerMeasures(np.array([values for values, _ in found]), tuple(text for _, text in found))


def _values(question: Question, made: SampleSet) -> tuple[float, float, float]:
    n = len(made.samples)
    right = sum(is_correct(question, sample.text) for sample in made.samples)
    return right / n, math.fsum(s.logprob for s in made.samples) / n, sum(s.n_tokens for s in made.samples) / n


def difference(one: AnswerMeasures, other: AnswerMeasures, measure: str) -> Delta:
    """Mean of other - one over the questions, with the 95 % interval of a paired t test."""
    from scipy import stats

    column = MEASURES.index(measure)
    paired = other.values[:, column] - one.values[:, column]
    mean, error = float(paired.mean()), float(paired.std(ddof=1)) / math.sqrt(len(paired))
    half = float(stats.t.ppf(0.975, len(paired) - 1)) * error
    return Delta(mean, mean - half, mean + half)


def same_greedy(one: AnswerMeasures, other: AnswerMeasures) -> float | None:
    """Share of questions with the same greedy answer, of those that have one in both; None if there are none."""
    both = [a == b for a, b in zip(one.greedy, other.greedy, strict=True) if a is not None and b is not None]
    return sum(both) / len(both) if both else None


def shared_questions(stores: Sequence[SampleStore], run: str, condition: Condition) -> set[str]:
    """Ids of the questions that all runs hold with at least two samples under a condition."""
    ids: set[str] | None = None
    for store in stores:
        there = {made.question_id for made in store.iterate(run, condition) if len(made.samples) > 1}
        ids = there if ids is None else ids & there
    return ids or set()
