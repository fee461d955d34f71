"""LangChain: a retriever that searches only where a gate asks for it, and the condition of LangGraph's edges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

try:
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
except ImportError as error:
    raise ImportError('LangChain is not installed; run: pip install "kbtrain[langchain]"') from error

from kbtrain.adapters import as_gate
from kbtrain.gate.gate import Gate


class GatedRetriever(BaseRetriever):
    """Documents of ``retriever`` where the gate asks for a search, else none. ``threshold`` None: the gate's own."""

    gate: Any
    retriever: BaseRetriever
    threshold: float | None = None

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self.gate = as_gate(self.gate)

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        if not self.gate.needs_retrieval(query, self.threshold):
            return []
        documents: list[Document] = self.retriever.invoke(query, config={"callbacks": run_manager.get_child()})
        return documents

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        if not await asyncio.to_thread(self.gate.needs_retrieval, query, self.threshold):
            return []
        documents: list[Document] = await self.retriever.ainvoke(query, config={"callbacks": run_manager.get_child()})
        return documents


def edge(
    gate: Gate | Path | str, field: str = "question", threshold: float | None = None
) -> Callable[[Mapping[str, Any]], Literal["search", "answer"]]:
    """A path for LangGraph's ``add_conditional_edges``: "search" or "answer", by the question in the state's field."""
    loaded = as_gate(gate)

    def path(state: Mapping[str, Any]) -> Literal["search", "answer"]:
        return "search" if loaded.needs_retrieval(state[field], threshold) else "answer"

    return path
