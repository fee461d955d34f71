"""NaturalQuestions-open (Lee et al. 2019): JSON Lines, DPR's tables of questions and answers, and gold passages.

``{"question": ..., "answer": [...]}``; with retrieved passages ``{"question", "answers", "ctxs": [{title, text,
isgold?}]}``; DPR (Karpukhin et al. 2020): ``question<TAB>['answer', ...]`` without a header.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbtrain.questions.base import Loaded, context, ids
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.json_stream import json_rows
from kbtrain.questions.reading.rows import SourceRecord
from kbtrain.questions.reading.tables import csv_cells, python_list
from kbtrain.records import Passage, Question


def nq_open(file: DataFile) -> Iterator[Loaded]:
    """Questions graded by exact match (KBM, section 4.2). A passage is gold if the file marks it (``isgold``)."""
    if file.suffix in {".csv", ".tsv"}:
        yield from dpr_table(file, "nq_open")
        return
    for number, row in enumerate(json_rows(file), 1):
        passages = _passages(row)
        gold = tuple(passage for inner, passage in passages if inner.has("isgold") and inner.flag("isgold"))
        every = tuple(passage for _, passage in passages)
        question = Question(
            id=f"nq_open/{file.label}/{number}",
            text=row.text("question"),
            answers=row.gold_answers("answers" if "answers" in row.data else "answer"),
            split=file.split,
            dataset="nq_open",
            grading="exact",
            gold_passages=ids(gold),
            context_passages=ids(every),
        )
        yield Loaded(question, row.file, row.line, every)


def _passages(row: SourceRecord) -> list[tuple[SourceRecord, Passage]]:
    inner = row.rows("ctxs") if row.has("ctxs") else ()
    return [(each, context("nq_open", each.text_or_empty("title"), each.text("text"))) for each in inner]


def dpr_table(file: DataFile, dataset: str) -> Iterator[Loaded]:
    """DPR's ``*.qa.csv``: tab-separated, the answers as a Python list."""
    for number, (line, cells) in enumerate(csv_cells(file, "\t"), 1):
        row = SourceRecord(dict(zip(("question", "answers"), cells, strict=False)), file.name, line)
        if len(cells) != 2:
            raise row.error("answers", f"expected question<TAB>answers, found {len(cells)} column(s)")
        answers = row.having({"answers": python_list(row, "answers")}).gold_answers("answers")
        question = Question(
            id=f"{dataset}/{file.label}/{number}",
            text=row.text("question"),
            answers=answers,
            split=file.split,
            dataset=dataset,
            grading="exact",
        )
        yield Loaded(question, file.name, line)
