"""Haystack: a component that sends a query to its output ``search`` or ``answer``."""

from __future__ import annotations

import asyncio
from typing import Any

try:
    from haystack import component, default_from_dict, default_to_dict
except ImportError as error:
    raise ImportError('Haystack is not installed; run: pip install "kbtrain[haystack]"') from error

from kbtrain.adapters import as_gate
from kbtrain.gate.gate import Gate


@component
class RetrievalGate:
    """Give the query at ``search`` or at ``answer``, never at both, and its score; the other branch does not run.

    ``gate``: the gate's folder, so that a pipeline can be written down; ``threshold`` None: the gate's own.
    """

    def __init__(self, gate: str, threshold: float | None = None) -> None:
        self.gate = gate
        self.threshold = threshold
        self._loaded: Gate | None = None

    def warm_up(self) -> None:
        """Open the gate, once."""
        if self._loaded is None:
            self._loaded = as_gate(self.gate)

    @component.output_types(search=str, answer=str, score=float)
    def run(self, query: str) -> dict[str, Any]:
        """Decide on one query. Raises :class:`~kbtrain.errors.UserError` for a gate without a threshold."""
        self.warm_up()
        assert self._loaded is not None
        decision = self._loaded.decide([query], self.threshold)[0]
        return {"search" if decision.retrieve else "answer": query, "score": decision.score}

    @component.output_types(search=str, answer=str, score=float)
    async def run_async(self, query: str) -> dict[str, Any]:
        return await asyncio.to_thread(self.run, query)

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = default_to_dict(self, gate=self.gate, threshold=self.threshold)
        return values

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RetrievalGate:
        """As written by :meth:`to_dict`; the gate is opened later."""
        values: RetrievalGate = default_from_dict(cls, data)
        return values
