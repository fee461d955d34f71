"""What every retriever offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kbtrain.records import Hit


class Searcher(Protocol):
    """Finds passages for queries. The same query gives the same hits; a web search may break that promise."""

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        """At most ``k`` hits for each query, best first."""
        ...
