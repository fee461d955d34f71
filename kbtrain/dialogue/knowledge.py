"""The feature ``know``: the first snippets of a ranker for each turn. The query is the context, and no response."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from kbtrain.dialogue.context import context_text
from kbtrain.jsonl import read
from kbtrain.records import Hit, Snippet, TurnExample
from kbtrain.retrieval.base import Searcher
from kbtrain.retrieval.ranker_data import Candidates, Rank, TfIdfRank

Know = Literal["tfidf", "ranker", "bm25"]


def by_rank(rank: Rank, candidates: Candidates, examples: Iterable[TurnExample], k: int) -> list[tuple[Hit, ...]]:
    """The ``k`` best of each turn's candidates; none where its dialogue has none."""
    return [tuple(rank(example, candidates.of(example), k)) for example in examples]


def by_index(searcher: Searcher, examples: Iterable[TurnExample], k: int) -> list[tuple[Hit, ...]]:
    """The ``k`` best passages of an index for each context."""
    return searcher.search([context_text(example.context) for example in examples], k)


def find_knowledge(
    know: Know, examples: Iterable[TurnExample], k: int, run: Path, source: Path | None, device: str = "auto"
) -> list[tuple[Hit, ...]]:
    """``tfidf`` and ``ranker`` (``source``: its folder) choose among the snippets of ``run``; ``bm25`` searches a
    corpus (``source``: its file), whose index is kept in the run. Raises :class:`~kbtrain.errors.UserError`."""
    if know == "bm25" and source:
        from kbtrain.retrieval.stage import open_index

        return by_index(open_index("bm25", source, run / "bm25_turns"), examples, k)
    snippets = list(read(Snippet, run / "snippets.jsonl"))
    if know == "tfidf":
        return by_rank(TfIdfRank(snippets), Candidates(snippets), examples, k)
    from kbtrain.retrieval.ranker import Ranker

    ranker = Ranker.load(source or "", device=device)
    rank: Rank = lambda turn, hits, k: ranker.best(turn.context, hits, k)  # noqa: E731
    return by_rank(rank, Candidates(snippets), examples, k)
