"""Mastery (KBM, section 3.2, the paper's confidence): share of a question's sampled answers that are correct."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from kbtrain.answers import grading
from kbtrain.answers.thoughts import is_left_out
from kbtrain.labeling.certainty import group_sizes
from kbtrain.records import Question, Sample


@dataclass(frozen=True)
class Graded:
    """A question's sampled answers after grading; ``groups`` are the sizes of the answer groups, largest first.

    An empty answer agrees with no other: it is a group of its own. Of a question without gold answers none is correct,
    and none graded.
    """

    n: int
    n_correct: int
    n_empty: int
    n_unparsed: int  # multiple choice: answers, not empty, that name no option (they count as wrong)
    groups: tuple[int, ...]
    n_abstained: int = 0  # without a verdict, by a judge or by the rule of yes/no questions: neither right nor wrong
    gold: bool = True  # there is something to compare with

    @property
    def n_graded(self) -> int:
        """Number of answers that are right or wrong."""
        return self.n - self.n_abstained if self.gold else 0

    @property
    def mastery(self) -> float | None:
        """Share of the graded answers that are right; None without gold answers, or without any verdict."""
        return self.n_correct / self.n_graded if self.n_graded else None


def grade(question: Question, answers: Iterable[str], verdicts: grading.Verdicts | None = None) -> Graded:
    """Grade (by the question's rule, or a judge's verdicts) and group answers; each distinct text is looked at once."""
    correct = empty = unparsed = abstained = 0
    groups: Counter[str] = Counter()
    texts = Counter(answers)
    for text, times in texts.items():
        is_empty = grading.is_empty(text)
        empty += times * is_empty
        right = grading.graded(question, text, verdicts)
        correct += times * (right is True)
        abstained += times * (right is None and bool(question.answers))
        if question.grading == "option" and not is_empty:
            unparsed += times * (grading.named_option(question, text) is None)
        groups[grading.group_key(question, text)] += times
    sizes = group_sizes(groups.elements())
    return Graded(texts.total(), correct, empty, unparsed, sizes, abstained, bool(question.answers))


def grade_answer(question: Question, answer: Sample | None, verdicts: grading.Verdicts | None = None) -> bool | None:
    """Verdict on one stored answer; None without one, for one that is skipped, and without a verdict on it."""
    if answer is None or is_left_out(answer):
        return None
    return grading.graded(question, answer.text, verdicts)
