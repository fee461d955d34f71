"""Two samplers that answer the same questions, compared question by question.

Mean mastery is the quantity of interest and is coarse; the mean log-probability of an answer shifts at once when one of
them filters, penalises or cools and the other does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kbtrain.answers.grading import is_correct
from kbtrain.arrays import Floats
from kbtrain.io.store import SampleStore
from kbtrain.metrics.significance import Delta
from kbtrain.records import Condition, Question, SampleSet

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
