"""Hits with different texts: a passage that a corpus holds several times takes one place among those shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kbtrain.answers.writing import without_ignored
from kbtrain.records import Hit
from kbtrain.retrieval.base import Searcher

SHORT = 40  # characters: shorter texts ("Yes.") are equal by chance, so their titles have to be equal, too


def distinct(hits: Iterable[Hit], k: int) -> tuple[tuple[Hit, ...], int]:
    """The first ``k`` hits with different texts, and how many copies were skipped on the way.

    Texts are equal without case, spaces and ignored characters.
    """
    by_key: dict[str, Hit] = {}
    skipped = 0
    for hit in hits:
        key = _key(hit)
        skipped += key in by_key
        by_key.setdefault(key, hit)
        if len(by_key) == k:
            break
    return tuple(by_key.values()), skipped


def _key(hit: Hit) -> str:
    text = _folded(hit.text)
    return text if len(text) >= SHORT else f"{_folded(hit.title)}\n{text}"


def _folded(text: str) -> str:
    return " ".join(without_ignored(text).casefold().split())


def refilled(find: Callable[[int], Sequence[Hit]], k: int, first: Sequence[Hit] | None = None) -> tuple[Hit, ...]:
    """``k`` distinct hits of one query, as far as there are: with copies among them more are asked for.

    ``find`` gives the best hits for their number; ``first``: its hits for ``k``, where they are known.
    """
    number, hits = k, find(k) if first is None else first
    while len(hits) == number and len(distinct(hits, k)[0]) < k:
        number *= 2
        hits = find(number)
    return distinct(hits, k)[0]


class DistinctSearch:
    """A searcher whose hits for a query have different texts; ``copies`` counts those that were skipped."""

    def __init__(self, searcher: Searcher) -> None:
        self.copies = 0
        self._searcher = searcher

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        """As :meth:`kbtrain.retrieval.base.Searcher.search`."""
        results = self._searcher.search(queries, k)
        return [self._distinct(query, hits, k) for query, hits in zip(queries, results, strict=True)]

    def _distinct(self, query: str, hits: tuple[Hit, ...], k: int) -> tuple[Hit, ...]:
        best, skipped = distinct(hits, k)
        if not skipped:
            return best
        last: Sequence[Hit] = hits

        def find(number: int) -> Sequence[Hit]:
            nonlocal last
            (last,) = self._searcher.search([query], number)
            return last

        best = refilled(find, k, hits)
        self.copies += distinct(last, k)[1]
        return best
