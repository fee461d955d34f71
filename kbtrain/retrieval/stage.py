"""From a file of questions to evidence, in the questions' order and in batches."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from kbtrain import jsonl
from kbtrain.errors import UserError, at
from kbtrain.prompts import query_text
from kbtrain.provenance import file_sha256
from kbtrain.questions.checks import read_questions
from kbtrain.records import Evidence, Hit, Passage, Question
from kbtrain.retrieval.bm25 import BM25
from kbtrain.retrieval.fixed import fixed_hits

Query = Literal["text", "text_and_options"]
Search = Callable[[Sequence[Question], Sequence[str]], list[tuple[Hit, ...]]]


def bm25_index(corpus: Path, folder: Path) -> BM25:
    """The index of a corpus, kept in ``folder`` and built only if the corpus is another one than last time."""
    wanted = {"corpus_sha256": file_sha256(corpus)}
    note = folder / "built_from.json"
    if not note.exists() or json.loads(note.read_text(encoding="utf-8")) != wanted:
        BM25.build(jsonl.read(Passage, corpus)).save(folder)
        note.write_text(json.dumps(wanted), encoding="utf-8")
    return BM25.load(folder)


def by_bm25(index: BM25, k: int) -> Search:
    """Search an index for the queries."""
    return lambda questions, queries: index.search(queries, k)


def by_gold(corpus: Path, k: int) -> Search:
    """The questions' own gold passages. Raises :class:`UserError` for a passage id that occurs twice."""
    passages: dict[str, Passage] = {}
    for number, passage in jsonl.read_numbered(Passage, corpus):
        if passage.id in passages:
            raise UserError(f"{at(corpus, number, 'id')}: duplicate '{passage.id}'")
        passages[passage.id] = passage
    return lambda questions, queries: [fixed_hits(question, passages, k) for question in questions]


def find_evidence(
    questions: Path, search: Search, name: str, query: Query, batch: int, skip: int
) -> Iterator[list[Evidence]]:
    """Evidence for all questions but the first ``skip``, a batch at a time."""
    rows = itertools.islice((question for _, question in read_questions(questions)), skip, None)
    while group := list(itertools.islice(rows, batch)):
        queries = [question.text if query == "text" else query_text(question) for question in group]
        found = search(group, queries)
        yield [evidence_of(*parts, name) for parts in zip(group, queries, found, strict=True)]


def evidence_of(question: Question, query: str, hits: tuple[Hit, ...], name: str) -> Evidence:
    """The record; ``gold_found``: is at least one of the gold passages among the hits?"""
    gold = set(question.gold_passages)
    return Evidence(question.id, name, query, hits, any(hit.passage_id in gold for hit in hits) if gold else None)


def summary(evidence: Path, questions: Path) -> dict[str, int]:
    """Counts over a finished file: how often some and all gold passages were found, and nothing at all."""
    counts = dict.fromkeys(("questions", "without_hits", "gold_named", "gold_found", "all_gold_found"), 0)
    pairs = zip(jsonl.read(Evidence, evidence), jsonl.read(Question, questions), strict=True)
    for found, question in pairs:
        ids = {hit.passage_id for hit in found.hits}
        counts["questions"] += 1
        counts["without_hits"] += not ids
        counts["gold_named"] += bool(question.gold_passages)
        counts["gold_found"] += bool(found.gold_found)
        counts["all_gold_found"] += bool(question.gold_passages) and ids.issuperset(question.gold_passages)
    return counts
