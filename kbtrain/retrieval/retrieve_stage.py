"""The retrieval stage: questions to evidence, in the questions' order and in batches.

An interrupted evidence file is resumed, and it appears under its name only when it is whole.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kbtrain.answers.grading import contains
from kbtrain.answers.mask import gold_texts, mask_answers, mask_leak
from kbtrain.answers.writing import has_other_writing
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.files import errors_of, writing
from kbtrain.io.provenance import Artifact, file_sha256, meta_path
from kbtrain.prompts.kbm import evidence_text
from kbtrain.questions.checks import read_questions
from kbtrain.records import Evidence, Hit, Question, Titles
from kbtrain.retrieval.base import distinct, own_hits
from kbtrain.retrieval.bm25 import BM25, build_index
from kbtrain.retrieval.corpus import Chunking, cut_passages, read_passages, read_unique_passages
from kbtrain.retrieval.tokens import RULE, Tokens

Search = Callable[[Sequence[Question]], list[tuple[Hit, ...]]]
FEW = 0.1  # share of questions without a hit from which on a line warns


def open_index(
    corpus: Path, folder: Path, chunking: Chunking | None = None, columns: Mapping[str, str] | None = None
) -> BM25:
    """The index of a corpus, kept in ``folder``; built if corpus, tokenizer or chunks differ from last time, and again
    where a file of it is missing, was changed or cannot be opened."""
    key: dict[str, Any] = {"corpus_sha256": file_sha256(corpus), "kind": "bm25", "tokens": Tokens().as_dict()}
    words = {"tokenizer": "words"}  # noted since indexes could be cut by a model's tokens
    key |= {"chunking": chunking and {**chunking._asdict(), **words}, "columns": dict(columns or {}) or None}
    index = Artifact(folder, "index", {}, key=key)
    if index.is_current():
        with contextlib.suppress(UserError, OSError):  # then it is built again
            return BM25.load(folder)
    with writing(folder), errors_of(folder):
        meta_path(folder).unlink(missing_ok=True)
        passages = read_passages(corpus, columns)
        build_index(passages if chunking is None else cut_passages(passages, chunking), folder, corpus)
        index.finish()
    return BM25.load(folder)


def take_own_passages(corpus: Path, k: int, field: str, columns: Mapping[str, str] | None = None) -> Search:
    """The passages that questions name in a field (:func:`~kbtrain.retrieval.base.own_hits`)."""
    passages = {passage.id: passage for passage in read_unique_passages(corpus, columns)}
    return lambda questions: [distinct(own_hits(q, field, passages), k)[0] for q in questions]


class EvidenceRule(NamedTuple):
    """The retriever's name, and when a passage shows its title."""

    name: str
    titles: Titles = "missing"


def find_evidence(
    questions: Path, search: Search, rule: EvidenceRule, batch: int, skip: int
) -> Iterator[list[Evidence]]:
    """Evidence for all questions but the first ``skip``, a batch at a time."""
    rows = itertools.islice((question for _, question in read_questions(questions)), skip, None)
    while group := list(itertools.islice(rows, batch)):
        yield [evidence_of(question, hits, rule) for question, hits in zip(group, search(group), strict=True)]


def evidence_of(question: Question, hits: tuple[Hit, ...], rule: EvidenceRule) -> Evidence:
    """The record. ``gold_found``: True if a gold passage, or a chunk of one, is among the hits."""
    gold = set(question.gold_passages)
    leak = mask_leak(mask_answers(evidence_text(hits, rule.titles) or "", question), question)
    gold_found = any(_source(hit.passage_id, gold) in gold for hit in hits) if gold else None
    return Evidence(question.id, rule.name, question.text, hits, gold_found, leak, rule.titles)


def _source(passage_id: str, gold: set[str]) -> str:
    """The passage that a chunk is of."""
    return passage_id if passage_id in gold else re.sub(r"#\d+$", "", passage_id)


def summary(evidence: Path, questions: Path) -> dict[str, int]:
    """Counts over a finished file: how often some and all gold passages, an answer, and nothing at all were found."""
    names = "questions without_hits answers_known answer_found gold_named gold_found all_gold_found mask_leaks"
    counts = dict.fromkeys(names.split(), 0)
    for row, question in zip(jsonl.read(Evidence, evidence), jsonl.read(Question, questions), strict=True):
        gold, golds = set(question.gold_passages), gold_texts(question)
        ids = {_source(hit.passage_id, gold) for hit in row.hits}
        texts = [f"{hit.title}. {hit.text}" for hit in row.hits]
        answer_found = any(contains(text, answer) for text in texts for answer in golds)
        all_found = bool(gold) and ids.issuperset(gold)
        facts = (1, not ids, golds, answer_found, gold, row.gold_found, all_found, row.mask_leak)
        for name, fact in zip(counts, facts, strict=True):
            counts[name] += bool(fact)
    return counts


def summary_lines(counts: Mapping[str, int], k: int, target: Path, web: bool = False) -> list[str]:
    """The counts of :func:`summary` as a sentence, skipped copies, and warnings; see :func:`missing_hits`."""
    n_gold, n_known = counts["gold_named"], counts["answers_known"]
    gold = f", a gold passage among the {k} hits for {counts['gold_found']} of {n_gold}" if n_gold else ""
    answers = f", an answer in the hits for {counts['answer_found']} of {n_known}" if n_known else ""
    lines = [f"{counts['questions']} questions, nothing found for {counts['without_hits']}{answers}{gold} -> {target}"]
    lines += missing_hits(counts["questions"], counts["without_hits"], web)
    if counts.get("copies_skipped"):
        lines.append(f"{counts['copies_skipped']} copies of passages skipped: equal texts count once")
    if n_known and counts["answer_found"] == 0:
        lines.append("warning: no hit contains an answer; check the corpus and its columns")
    return lines


def missing_hits(n: int, without: int, web: bool = False) -> list[str]:
    """A warning where a tenth of ``n`` questions or more has no passage. Raises :class:`UserError` where none has."""
    remedy = "check the service's paths (key 'web')" if web else "check the corpus and its columns"
    if n and without == n:
        raise UserError(f"the search found nothing for all {n} questions: {remedy}")
    few = without >= FEW * n and without > 0
    return [f"warning: the search found nothing for {without} of {n} questions: {remedy}"] if few else []


def word_rule(questions: Path) -> dict[str, str]:
    """The rule that cuts questions into words, for the key of their evidence; empty where every rule so far cuts alike
    (Latin and Chinese characters)."""
    texts = (question.text for question in jsonl.read(Question, questions))
    return {"words": RULE} if any(map(has_other_writing, texts)) else {}
