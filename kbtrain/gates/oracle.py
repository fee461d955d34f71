"""The gate that knows the outcome: an upper bound, never a method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbtrain.records import GateExample, Outcome


class Oracle:
    """Score = what retrieval gains (greedy answers): 1 mended by it, 0 no difference, -1 broken by it.

    With a threshold in [0, 1), no gate is more accurate, and none that is as accurate retrieves less.
    """

    name = "oracle"
    needs_samples = False
    needs_evidence = False

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        self._gain = {o.question_id: float(o.rag_correct) - float(o.llm_correct) for o in outcomes}

    def score(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example. Raises KeyError for a question without an outcome."""
        return [self._gain[example.question_id] for example in examples]
