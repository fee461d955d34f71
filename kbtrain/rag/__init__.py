"""Answering with retrieval: :func:`answer` in an application, the KBM paper's three steps, SeaKR's loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbtrain.rag.use import answer

__all__ = ["answer"]


def __getattr__(name: str) -> Any:
    if name == "answer":
        from kbtrain.rag.use import answer

        return answer
    raise AttributeError(f"module 'kbtrain.rag' has no attribute '{name}'")
