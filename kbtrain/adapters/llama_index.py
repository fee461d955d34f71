"""LlamaIndex: a selector for routers, and a query engine that answers without passages where none are needed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    from llama_index.core.base.base_selector import BaseSelector, SelectorResult, SingleSelection
    from llama_index.core.query_engine import CustomQueryEngine
    from llama_index.core.schema import QueryBundle
except ImportError as error:
    raise ImportError('LlamaIndex is not installed; run: pip install "kbtrain[llama-index]"') from error

from kbtrain.adapters import as_gate
from kbtrain.gate.gate import Gate


class GateSelector(BaseSelector):
    """Choose between two: choice 0 answers without a search, choice 1 with one. No language model is asked."""

    def __init__(self, gate: Gate | Path | str, threshold: float | None = None) -> None:
        super().__init__()
        self._gate = as_gate(gate)
        self._threshold = threshold

    def _select(self, choices: Sequence[Any], query: QueryBundle) -> SelectorResult:
        if len(choices) != 2:
            raise ValueError(f"GateSelector: expected two choices (plain, search), found {len(choices)}")
        decision = self._gate.decide([query.query_str], self._threshold)[0]
        reason = f"{decision.reason}: score {decision.score:.4g}, threshold {decision.threshold:.4g}"
        return SelectorResult(selections=[SingleSelection(index=int(decision.retrieve), reason=reason)])

    async def _aselect(self, choices: Sequence[Any], query: QueryBundle) -> SelectorResult:
        return await asyncio.to_thread(self._select, choices, query)

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: dict[str, Any]) -> None:
        """There are no prompts."""


class GatedQueryEngine(CustomQueryEngine):
    """``engine`` where the gate asks for a search, else the text of ``llm.complete``: never "Empty Response"."""

    gate: Any
    engine: Any
    llm: Any
    threshold: float | None = None

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self.gate = as_gate(self.gate)

    def custom_query(self, query_str: str) -> Any:
        if self.gate.needs_retrieval(query_str, self.threshold):
            return self.engine.query(query_str)
        return self.llm.complete(query_str).text

    async def acustom_query(self, query_str: str) -> Any:
        if await asyncio.to_thread(self.gate.needs_retrieval, query_str, self.threshold):
            return await self.engine.aquery(query_str)
        return (await self.llm.acomplete(query_str)).text
