"""The two gates that look at nothing: All-RAG and LLM-only."""

from __future__ import annotations

from collections.abc import Sequence

from kbtrain.records import GateExample


class Always:
    """Retrieves for every question (score 1)."""

    name = "all_rag"
    needs_samples = False
    needs_evidence = False

    def score(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example."""
        return [1.0] * len(examples)


class Never:
    """Retrieves for no question (score 0)."""

    name = "llm_only"
    needs_samples = False
    needs_evidence = False

    def score(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example."""
        return [0.0] * len(examples)
