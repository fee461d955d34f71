"""Interface of retrievers; hits with different texts; evidence that a data set or evidence.jsonl provides."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from kbtrain.answers.writing import is_blank, without_ignored
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.provenance import check_current
from kbtrain.records import Evidence, Example, GateExample, Hit, Passage, Question

BUILD = "data_gen/retrieve.py with its options"  # the command that builds an index


class Searcher(Protocol):
    """Finds passages for queries. The same query gives the same hits; a web search may break that promise."""

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        """At most ``k`` hits for each query, best first."""
        ...


def hit_of(value: Any, rank: int) -> Hit | None:
    """A text, a mapping with ``text`` (``title``, ``id``, ``score``; else 1 / ``rank``) or a hit as a hit, or None."""
    if isinstance(value, Hit):
        return value
    if isinstance(value, str):
        return Hit(str(rank), "", value, 1 / rank)
    if isinstance(value, Mapping) and isinstance(value.get("text"), str):
        name, score, title = value.get("id"), value.get("score"), str(value.get("title") or "")
        with contextlib.suppress(TypeError, ValueError):  # a score that is not a number
            found = 1 / rank if score is None or score == "" else float(score)
            return Hit(str(name if name or name == 0 else rank), title, value["text"], found)
    return None


def own_hits(question: Question, field: str, passages: Mapping[str, Passage]) -> tuple[Hit, ...]:
    """Passages that a question names in ``gold_passages`` or ``context_passages``, in its order, each with score 1."""
    hits = []
    for name in getattr(question, field):
        if name not in passages:
            raise UserError(f"question '{question.id}': field '{field}': no passage '{name}' in the corpus")
        hits.append(Hit(name, passages[name].title, passages[name].text, 1.0))
    return tuple(hits)


SHORT = 40  # characters: shorter texts ("Yes.") are equal by chance, so their titles have to be equal, too


def distinct(hits: Iterable[Hit], k: int) -> tuple[tuple[Hit, ...], int]:
    """The first ``k`` hits with different texts that are not blank, and how many copies were skipped on the way; case,
    spaces and ignored characters do not count."""
    by_key: dict[str, Hit] = {}
    skipped = 0
    for hit in (hit for hit in hits if not is_blank(hit.text)):
        key = _folded(hit.text)
        key = key if len(key) >= SHORT else f"{_folded(hit.title)}\n{key}"
        skipped += key in by_key
        by_key.setdefault(key, hit)
        if len(by_key) == k:
            break
    return tuple(by_key.values()), skipped


def _folded(text: str) -> str:
    return " ".join(without_ignored(text).casefold().split())


def refilled(
    find: Callable[[int], Sequence[Hit]], k: int, first: Sequence[Hit] | None = None
) -> tuple[tuple[Hit, ...], int]:
    """``k`` distinct hits of one query, as far as ``find`` (of their number) has them, and how many copies were
    skipped; ``first``: its hits for ``k``, where they are known."""
    number, hits = k, find(k) if first is None else first
    while len(hits) == number and len(distinct(hits, k)[0]) < k:
        number *= 2
        hits = find(number)
    return distinct(hits, k)


class DistinctSearch:
    """A searcher whose hits for a query have different texts; ``copies`` counts those that were skipped."""

    def __init__(self, searcher: Searcher) -> None:
        self.copies = 0
        self._searcher = searcher

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        results = []
        for query, hits in zip(queries, self._searcher.search(queries, k), strict=True):
            best, copies = refilled(lambda n, query=query: self._searcher.search([query], n)[0], k, hits)  # type: ignore[misc]
            self.copies += copies
            results.append(best)
        return results


def attach_hits(examples: Sequence[Example], evidence: Path) -> list[GateExample]:
    """Questions with their passages and the rule of the passages' titles. Raises :class:`UserError`."""
    check_current(evidence, evidence.parent / "questions.jsonl")
    questions = [example for example in examples if isinstance(example, GateExample)]
    ids = {example.question_id for example in questions}
    by_question = {row.question_id: row for row in jsonl.read(Evidence, evidence) if row.question_id in ids}
    with_hits = []
    for example in questions:
        row = by_question.get(example.question_id)
        if row is None:
            raise UserError(f"{evidence}: no passages of question '{example.id}'; run data_gen/retrieve.py for it")
        with_hits.append(replace(example, hits=row.hits, titles=row.titles))
    return with_hits
