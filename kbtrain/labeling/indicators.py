"""Mastery and certainty of a question's sampled answers (KBM, section 3.2).

Mastery, the paper's confidence, is the share of the answers that are correct. Certainty says how much they agree:
C = 1 - U / ln I in [0, 1], where U is the entropy (natural logarithm) of the groups of I answers. C = 1: all the same,
C = 0: all different.

Certainty grows with I (two equal halves: 0.646, 0.722, 0.757, 0.801 for I = 5, 10, 15, 30), so certainties from
different numbers of answers have different scales. On one scale they are the mean certainty of I answers drawn from
those that are there, without replacement, for the same I everywhere (rarefaction; Hurlbert 1971 for species counts).
The mean is unbiased for any I up to their number, and the paper's own value where I is their number.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from kbtrain.answers import grading
from kbtrain.answers.thoughts import is_left_out
from kbtrain.metrics.significance import Interval
from kbtrain.records import Question, Sample


@dataclass(frozen=True)
class Graded:
    """A question's sampled answers after grading; ``groups`` are the sizes of the answer groups, largest first.

    An empty answer agrees with no other: it is its own group. Of a question without gold answers none is correct,
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
    groups, texts = Counter[str](), Counter(answers)
    for text, times in texts.items():
        is_empty = grading.is_empty(text)
        empty += times * is_empty
        right = _by_rule(question, text) if verdicts is None else grading.graded(question, text, verdicts)
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
    return _by_rule(question, answer.text) if verdicts is None else grading.graded(question, answer.text, verdicts)


_by_rule = functools.lru_cache(maxsize=64)(grading.graded)  # a text comes again: sampled, greedy, with passages
MAX_EMPTY = 0.5  # share of empty answers above which nothing is known of how the answers agree
DRAWS = 1000  # bootstrap samples
SEED = 20_241


def group_sizes(keys: Iterable[str]) -> tuple[int, ...]:
    """Sizes of the groups of answers by their keys (:func:`kbtrain.answers.grading.group_key`), largest first.

    An empty answer ("") agrees with no other, so each one is its own group.
    """
    counts = Counter(keys)
    empty = counts.pop("", 0)
    return (*sorted(counts.values(), reverse=True), *[1] * empty)


def certainty(groups: tuple[int, ...], answers: int | None = None) -> float:
    """Certainty from the sizes of the answer groups (their order does not matter); needs at least two answers.

    ``answers``: the I of the scale, at most as many as there are; None: all of them (the paper's value).
    """
    n = sum(groups)
    scale = n if answers is None else answers
    if n < 2 or min(groups) < 1 or not 2 <= scale <= n:
        raise ValueError(f"certainty needs two answers or more in groups that are not empty, not {scale} of {groups}")
    if len(groups) == 1:
        # the sum below misses it by a rounding for some n
        return 1.0
    if scale < n:
        entropy = math.fsum(_mean_entropy(size, n, scale) for size in sorted(groups))
    else:
        entropy = math.log(n) - math.fsum(size * math.log(size) for size in sorted(groups)) / n
    return min(1.0, max(0.0, 1 - entropy / math.log(scale)))


@functools.lru_cache(maxsize=16_384)
def _mean_entropy(size: int, n: int, drawn: int) -> float:
    """A group's part of the entropy of ``drawn`` of ``n`` answers, over all ways to draw them (hypergeometric)."""
    ways = (
        (k, math.comb(size, k) * math.comb(n - size, drawn - k))
        for k in range(max(1, drawn - n + size), min(size, drawn) + 1)
    )
    return math.fsum(-times * (k / drawn) * math.log(k / drawn) for k, times in ways) / math.comb(n, drawn)


@functools.lru_cache(maxsize=16_384)  # 30 answers fall into groups in 5,604 ways: each is computed once
def certainty_interval(groups: tuple[int, ...], answers: int | None = None) -> Interval:
    """95 % bootstrap interval for the certainty that as many samples show on average, on the scale of ``answers``.

    In simulations with 30 answers from ten kinds of distributions it covers 0.83 (long tails) to 1.0, the percentile
    interval 0.48 to 0.94. Seeded by the groups alone.
    """
    import numpy as np

    sizes = tuple(sorted(groups, reverse=True))
    n, value = sum(sizes), certainty(sizes, answers)
    # one answer not seen yet takes part: without it 30 equal answers would leave no doubt
    shares = np.array([*sizes, 1]) / (n + 1)
    counts = np.random.default_rng([SEED, *sizes]).multinomial(n, shares, size=DRAWS)
    if answers is None or answers == n:
        size_log_size = np.array([0.0, *(size * math.log(size) for size in range(1, n + 1))])
        resampled = size_log_size[counts].sum(axis=1) / (n * math.log(n))  # = 1 - U / ln n
    else:
        parts = np.array([0.0, *(_mean_entropy(size, n, answers) for size in range(1, n + 1))])
        resampled = 1 - parts[counts].sum(axis=1) / math.log(answers)
    # a resample always agrees more than its original, so the resamples' spread is centred on the value itself
    low, high = np.quantile(resampled, [0.025, 0.975]) - resampled.mean()
    return max(0.0, value + min(0.0, float(low))), min(1.0, value + max(0.0, float(high)))


SAME = 1e-9  # what rounding leaves between equal values


def above(value: float, tau: float) -> bool:
    """True if a certainty or a benefit exceeds ``tau``, rounding aside."""
    # equal entropies of different groupings (4+1+1+1+1 and 2+2+2+2) differ in the last digit, and so do 0.4 - 0.3 and
    # 0.2 - 0.1
    return value > tau + SAME


def quantile(values: Counter[float], share: float) -> float:
    """The smallest value with at least this share of all values at or below it; ``values`` maps value to count."""
    total, below = values.total(), 0
    for value in sorted(values):
        below += values[value]
        # 0.07 * 100 is a little more than 7
        if below >= share * total * (1 - 1e-12):
            return value
    raise ValueError("no values")
