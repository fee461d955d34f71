"""Interface of retrievers, and the evidence that a data set provides: its gold passages, or all of a question's."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kbtrain.errors import UserError
from kbtrain.records import Hit, Passage, Question

BUILD = "data_gen/retrieve.py with its options"  # the command that builds an index


class Searcher(Protocol):
    """Finds passages for queries. The same query gives the same hits; a web search may break that promise."""

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        """At most ``k`` hits for each query, best first."""
        ...


def hit_of(value: Any, rank: int) -> Hit | None:
    """Convert a search result to a hit: a text, a mapping with ``text`` (and ``title``, ``id``, ``score``), or a
    hit. None for anything else; without a score it is 1 / ``rank`` (counted from 1).
    """
    if isinstance(value, Hit):
        return value
    if isinstance(value, str):
        return Hit(str(rank), "", value, 1 / rank)
    if isinstance(value, Mapping) and isinstance(value.get("text"), str):
        name, title = str(value.get("id") or rank), str(value.get("title") or "")
        with contextlib.suppress(TypeError, ValueError):  # a score that is not a number
            return Hit(name, title, value["text"], float(value.get("score") or 1 / rank))
    return None


def own_hits(question: Question, field: str, passages: Mapping[str, Passage]) -> tuple[Hit, ...]:
    """Passages that a question names in ``gold_passages`` or ``context_passages``, in its order, each with score 1.

    Raises :class:`UserError` for a passage that the corpus does not have.
    """
    hits = []
    for name in getattr(question, field):
        if name not in passages:
            raise UserError(f"question '{question.id}': field '{field}': no passage '{name}' in the corpus")
        hits.append(Hit(name, passages[name].title, passages[name].text, 1.0))
    return tuple(hits)
