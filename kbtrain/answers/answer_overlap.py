"""Exact match and token F1 of short answers, as HotpotQA and SQuAD report them, over the one normalisation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kbtrain.answers.grading import normalise

_CLOSED = {"yes", "no", "noanswer"}  # HotpotQA: such an answer is right or wrong, never partly right


def exact_match(answer: str, golds: Iterable[str]) -> float:
    """1 if the answer is one of the accepted ones after normalisation, else 0."""
    return float(normalise(answer) in {normalise(gold) for gold in golds})


def token_f1(answer: str, golds: Iterable[str]) -> float:
    """The best F1 over the accepted answers, of words (Chinese: characters) with repeats."""
    return max((_f1(normalise(answer), normalise(gold)) for gold in golds), default=0.0)


def _f1(answer: str, gold: str) -> float:
    if answer != gold and (answer in _CLOSED or gold in _CLOSED):
        return 0.0
    said, wanted = answer.split(), gold.split()
    common = sum((Counter(said) & Counter(wanted)).values())
    return 2 * common / (len(said) + len(wanted)) if common else 0.0
