"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018) and its Chinese kin: articles, paragraphs, questions.

``{"data": [{"title", "paragraphs": [{"context", "qas": [QA]}]}]}``, QA: ``{"id", "question", "answers": [{"text"}],
"is_impossible"}``. On the Hugging Face hub: ``{"id", "title", "context", "question", "answers": {"text": [...]}}``.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbtrain.questions.base import Loaded, context, load_row
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.json_stream import first_key, rows_under
from kbtrain.questions.reading.parquet import PARQUET
from kbtrain.questions.reading.rows import SourceRecord, unique
from kbtrain.questions.reading.tables import any_rows
from kbtrain.records import Language


def squad(file: DataFile) -> Iterator[Loaded]:
    """The paragraph is the gold passage. Impossible questions (marked, or without answers) have ``gold`` "none"."""
    yield from _questions(file, "squad", "en")


def squad_zh(file: DataFile) -> Iterator[Loaded]:
    """The same in Chinese (machine-translated SQuAD, CMRC 2018, DRCD)."""
    yield from _questions(file, "squad_zh", "zh")


_FLAT = frozenset({"id", "title", "context", "question", "answers"})


def _questions(file: DataFile, dataset: str, language: Language) -> Iterator[Loaded]:
    # the hub's rows are flat
    flat = file.suffix == PARQUET or first_key(file) in {None, *_FLAT}
    flat_rows = ((row, row.text_or_empty("title"), row.text("context")) for row in any_rows(file))
    for row, title, text in flat_rows if flat else _nested_rows(file):
        passage = context(dataset, title.replace("_", " "), text)
        answers = _answers(row)
        yield load_row(row, file, dataset, (passage,), id=row.identifier("id"), text=row.text("question"),
                       answers=answers, language=language, gold_passages=(passage.id,) if answers else (),
                       gold="given" if answers else "none")  # fmt: skip


def _nested_rows(file: DataFile) -> Iterator[tuple[SourceRecord, str, str]]:
    """(question, its article's title, its paragraph) of the release."""
    for article in rows_under(file, "data"):
        title = article.text_or_empty("title")
        for paragraph in article.rows("paragraphs"):
            text = paragraph.text("context")
            for row in paragraph.rows("qas"):
                yield row, title, text


def _answers(row: SourceRecord) -> tuple[str, ...]:
    answers = unique(answer.gold_answer("text") for answer in row.rows("answers"))
    impossible = row.has("is_impossible") and row.flag("is_impossible")
    if impossible and any(answers):
        raise row.error("answers", "an impossible question has none")
    return () if impossible else answers
