"""The feature ``know``: the first snippets of a ranker for each turn. The query is the context, and no response."""

from __future__ import annotations

from collections.abc import Iterable

from kbtrain.dialogue.context import context_text
from kbtrain.records import Hit, TurnExample
from kbtrain.retrieval.base import Searcher
from kbtrain.retrieval.ranker_data import Candidates, Rank


def by_rank(rank: Rank, candidates: Candidates, examples: Iterable[TurnExample], k: int) -> list[tuple[Hit, ...]]:
    """The ``k`` best of each turn's candidates; none where its dialogue has none."""
    return [tuple(rank(example, candidates.of(example), k)) for example in examples]


def by_index(searcher: Searcher, examples: Iterable[TurnExample], k: int) -> list[tuple[Hit, ...]]:
    """The ``k`` best passages of an index for each context."""
    return searcher.search([context_text(example.context) for example in examples], k)
