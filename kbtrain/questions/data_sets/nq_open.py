"""NaturalQuestions-open (Lee et al. 2019): JSON Lines, DPR's tables of questions and answers, and gold passages.

``{"question": ..., "answer": [...]}``; with retrieved passages ``{"question", "answers", "ctxs": [{title, text,
isgold?}]}``; DPR (Karpukhin et al. 2020): ``question<TAB>['answer', ...]`` without a header, under the name
``nq-test.qa.csv`` or Pyserini's ``topics.dpr.nq.test.txt``; Pyserini's runs:
``{NUMBER: {"question", "answers", "contexts": [{"text"}]}}``.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbtrain.questions.base import Loaded, context, ids, load_row, titled
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.json_stream import first_key, rows_by_key
from kbtrain.questions.reading.parquet import PARQUET
from kbtrain.questions.reading.rows import SourceRecord
from kbtrain.questions.reading.tables import TABLES, any_rows, csv_cells, python_list
from kbtrain.records import Passage


def nq_open(file: DataFile) -> Iterator[Loaded]:
    """Questions graded by exact match (KBM, section 4.2). A passage is gold if the file marks it (``isgold``)."""
    if is_dpr_table(file):
        yield from dpr_table(file, "nq_open")
        return
    is_run = file.suffix != PARQUET and (first_key(file) or "").isdecimal()
    for number, row in enumerate((row for _, row in rows_by_key(file)) if is_run else any_rows(file), 1):
        passages = _passages(row)
        gold = tuple(passage for inner, passage in passages if inner.has("isgold") and inner.flag("isgold"))
        every = tuple(passage for _, passage in passages)
        yield load_row(row, file, "nq_open", every, id=f"nq_open/{file.label}/{number}", text=row.text("question"),
                       answers=row.gold_answers("answers" if row.has("answers") else "answer"), grading="exact",
                       gold_passages=ids(gold))  # fmt: skip


def _passages(row: SourceRecord) -> list[tuple[SourceRecord, Passage]]:
    key = "contexts" if row.has("contexts") else "ctxs"
    return [(inner, _passage(inner)) for inner in (row.rows(key) if row.has(key) else ())]


def _passage(inner: SourceRecord) -> Passage:
    title, text = inner.text_or_empty("title"), inner.text("text")
    return context("nq_open", title, text) if title else context("nq_open", *titled(text))


def is_dpr_table(file: DataFile) -> bool:
    """True for a table of DPR by its name; Pyserini calls them ``.txt``, and some of its ``.txt`` are JSON Lines."""
    return file.suffix in TABLES or (file.suffix == ".txt" and first_key(file) is None)


def dpr_table(file: DataFile, dataset: str) -> Iterator[Loaded]:
    """DPR's ``*.qa.csv``: tab-separated, the answers as a Python list."""
    for number, (line, cells) in enumerate(csv_cells(file, "\t"), 1):
        row = SourceRecord(dict(zip(("question", "answers"), cells, strict=False)), file.name, line)
        if len(cells) != 2:
            raise row.error("answers", f"expected question<TAB>answers, found {len(cells)} column(s)")
        answers = row.having({"answers": python_list(row, "answers")}).gold_answers("answers")
        yield load_row(row, file, dataset, id=f"{dataset}/{file.label}/{number}", text=row.text("question"),
                       answers=answers, grading="exact")  # fmt: skip
