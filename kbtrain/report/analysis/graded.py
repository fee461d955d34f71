"""Grading of a question's stored answers, the input of every analysis, and running means with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kbtrain.answers import grading
from kbtrain.answers.thoughts import counted_answers
from kbtrain.labeling.certainty import MAX_EMPTY, certainty, group_sizes
from kbtrain.metrics.significance import Z95
from kbtrain.records import Question, SampleSet


@dataclass(frozen=True)
class GradedAnswers:
    """Verdict (or None) and group of each counted answer, in the order of the sample indices."""

    right: tuple[bool | None, ...]
    group: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.right)

    def first(self, n: int) -> GradedAnswers:
        """The first ``n`` answers."""
        return GradedAnswers(self.right[:n], self.group[:n])

    def half(self, odd: bool) -> GradedAnswers:
        """Every second answer: two disjoint halves."""
        return GradedAnswers(self.right[odd::2], self.group[odd::2])

    @property
    def counts(self) -> tuple[int, int]:
        """(right, graded)."""
        return sum(r is True for r in self.right), sum(r is not None for r in self.right)

    @property
    def mastery(self) -> float | None:
        """Share of right answers; None if none was graded."""
        right, n = self.counts
        return right / n if n else None

    @property
    def certainty(self) -> float | None:
        """KBM, section 3.2; None for fewer than two answers, or where more than half of them are empty."""
        return self.certainty_at(len(self))

    def certainty_at(self, scale: int) -> float | None:
        """Certainty on the scale of ``scale`` answers, as :attr:`certainty`; None also where fewer are there."""
        if scale < 2 or len(self) < scale or self.group.count("") > MAX_EMPTY * len(self):
            return None
        return certainty(group_sizes(self.group), scale)


def graded_answers(question: Question, answers: SampleSet, verdicts: grading.Verdicts | None = None) -> GradedAnswers:
    """Grade each sampled answer that is not skipped, each distinct text once."""
    by_text: dict[str, tuple[bool | None, str]] = {}
    counted = counted_answers(answers.samples)
    for sample in counted:
        if sample.text not in by_text:
            right = grading.graded(question, sample.text, verdicts)
            by_text[sample.text] = right, grading.group_key(question, sample.text)
    rows: Sequence[tuple[bool | None, str]] = [by_text[sample.text] for sample in counted]
    return GradedAnswers(tuple(right for right, _ in rows), tuple(group for _, group in rows))


@dataclass
class RunningMean:
    """Sums of values and of their squares; the interval is the normal one over questions."""

    n: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.n += 1
        self.total += value
        self.squares += value * value

    @property
    def mean(self) -> float | None:
        return self.total / self.n if self.n else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """None for fewer than two values."""
        if self.n < 2:
            return None
        mean = self.total / self.n
        variance = max(0.0, self.squares / self.n - mean * mean) * self.n / (self.n - 1)
        half = Z95 * math.sqrt(variance / self.n)
        return mean - half, mean + half
