"""Change: the probability that an answer with passages differs in meaning from one without. It needs no gold answer.

Value: the share of different pairs among all pairs of one answer without passages and one with them. This is a
two-sample U-statistic. It is the mean, over all ways to pair the answers off, of a share of min(n, m) independent
pairs (Hoeffding 1963, section 5). So Wilson's interval for that many trials is wide enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kbtrain.answers import grading
from kbtrain.answers.words import normalise
from kbtrain.errors import UserError
from kbtrain.metrics.significance import wilson
from kbtrain.records import Question

LONG = 12  # words from which on an answer is a sentence of its own: the rule compares strings, not what they say
Equality = Callable[[Question, str, str], bool | None]  # None: no verdict on the pair


@dataclass(frozen=True)
class MeaningGroups:
    """Groups of a question's answers that say the same, by a model: normalised answer -> number of its group."""

    question_id: str
    group: dict[str, int]


def by_groups(groups: MeaningGroups | None) -> Equality:
    """Equality by a model's groups, where the rule accepts neither answer; by the rule alone without groups.

    Raises :class:`UserError` for an answer that is in no group.
    """
    if groups is None:
        return grading.is_same

    def is_same(question: Question, first: str, second: str) -> bool:
        if grading.is_same(question, first, second):
            return True
        if question.grading == "option" or grading.is_empty(first) or grading.is_empty(second):
            return False
        numbers = []
        for text in (first, second):
            if normalise(text) not in groups.group:
                raise UserError(
                    f"question '{question.id}': no group for the answer {text!r:.60}; run data_gen/judge_change.py "
                    "again"
                )
            numbers.append(groups.group[normalise(text)])
        return numbers[0] == numbers[1]

    return is_same


class Change(NamedTuple):
    """A share of pairs in [0, 1] with its 95 % interval."""

    value: float
    low: float
    high: float


def change(
    question: Question, llm: Iterable[str], rag: Iterable[str], is_same: Equality = grading.is_same
) -> Change | None:
    """Share of the pairs whose answers differ; None without a pair that has a verdict."""
    without, with_passages = (_forms(question, texts) for texts in (llm, rag))
    different = judged = 0
    for key, (text, times) in without.items():
        for other_key, (other, other_times) in with_passages.items():
            # answers of one form are compared once
            same = True if key == other_key else is_same(question, text, other)
            if same is not None:
                judged += times * other_times
                different += times * other_times * (not same)
    if not judged:
        return None
    # Wilson's interval for min(n, m) independent pairs is wide enough for a two-sample U-statistic (Hoeffding 1963)
    pairs = min(sum(times for _, times in forms.values()) for forms in (without, with_passages))
    share = different / judged
    return Change(share, *wilson(share * pairs, pairs))


def _forms(question: Question, texts: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Form of an answer -> its first spelling, and the number of answers of this form."""
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for text, times in Counter(texts).items():
        key = grading.group_key(question, text)
        counts[key] += times
        first.setdefault(key, text)
    return {key: (first[key], times) for key, times in counts.items()}
