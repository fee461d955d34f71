"""DSPy: a module that searches for context where a gate asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

try:
    import dspy
except ImportError as error:
    raise ImportError('DSPy is not installed; run: pip install "kbtrain[dspy]"') from error

from kbtrain.adapters import as_gate
from kbtrain.gate.gate import Gate


class Gated(dspy.Module):
    """A prediction with ``answer``, ``retrieved`` and ``score``. ``search`` gives passages for a question."""

    def __init__(
        self, gate: Gate | Path | str, search: Callable[[str], Sequence[str]], threshold: float | None = None
    ) -> None:
        super().__init__()
        self._decide = as_gate(gate).decide
        self._search = search
        self._threshold = threshold
        self.plain = dspy.Predict("question -> answer")
        self.rag = dspy.Predict("context, question -> answer")

    def _inputs(self, question: str) -> tuple[Any, dict[str, Any]]:
        decision = self._decide([question], self._threshold)[0]
        context = {"context": list(self._search(question))} if decision.retrieve else {}
        return decision, {"question": question, **context}

    def forward(self, question: str) -> Any:
        decision, inputs = self._inputs(question)
        prediction = self.rag(**inputs) if decision.retrieve else self.plain(**inputs)
        return dspy.Prediction(answer=prediction.answer, retrieved=decision.retrieve, score=decision.score)

    async def aforward(self, question: str) -> Any:
        decision, inputs = await asyncio.to_thread(self._inputs, question)
        prediction = await (self.rag if decision.retrieve else self.plain).acall(**inputs)
        return dspy.Prediction(answer=prediction.answer, retrieved=decision.retrieve, score=decision.score)
