"""What a condition (``llm``, ``rag``, ``mask``) achieves on the evaluated questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kbtrain.evaluation.outcomes import ConditionOutcome


@dataclass(frozen=True)
class ConditionSummary:
    """``accuracy``: of the ``n`` stored greedy answers; ``expected_accuracy``: mean mastery of the ``n_sampled``
    questions with samples; ``n_empty`` and ``n_cut_off`` (token limit reached) count greedy answers. None without any.
    """

    n: int
    accuracy: float | None
    n_sampled: int
    expected_accuracy: float | None
    generated_tokens: int
    n_empty: int
    n_cut_off: int


def summarise(graded: Sequence[ConditionOutcome]) -> ConditionSummary:
    """Add up one condition's answers."""
    right = [g.correct for g in graded if g.correct is not None]
    masteries = [g.mastery for g in graded if g.mastery is not None]
    return ConditionSummary(
        n=len(right),
        accuracy=sum(right) / len(right) if right else None,
        n_sampled=len(masteries),
        expected_accuracy=sum(masteries) / len(masteries) if masteries else None,
        generated_tokens=sum(g.tokens for g in graded),
        n_empty=sum(g.empty for g in graded),
        n_cut_off=sum(g.cut_off for g in graded),
    )
