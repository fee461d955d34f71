"""Effect of retrieval on a question (KBM, section 3.2): the three classes, and benefit as their soft form."""

from __future__ import annotations

from kbtrain.metrics.intervals import Interval, newcombe
from kbtrain.records import Effect, Indicators

_SAME = 1e-9  # equal entropies of different groupings, e.g. 4+1+1+1+1 and 2+2+2+2, differ in the last digit


def effect(without: float, with_retrieval: float) -> Effect:
    """Whether an indicator rises (beneficial), stays (neutral) or falls (harmful) when the evidence is given."""
    if abs(with_retrieval - without) < _SAME:
        return "neutral"
    return "beneficial" if with_retrieval > without else "harmful"


def benefit(llm: Indicators, rag: Indicators) -> tuple[float, Interval]:
    """Mastery with retrieval minus mastery without, in [-1, 1], and its 95 % interval (Newcombe)."""
    interval = newcombe((llm.n_correct, llm.n - llm.n_abstained), (rag.n_correct, rag.n - rag.n_abstained))
    return rag.mastery - llm.mastery, interval
