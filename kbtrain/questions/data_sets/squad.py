"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018) and its Chinese kin: articles, paragraphs, questions.

``{"data": [{"title", "paragraphs": [{"context", "qas": [QA]}]}]}``, QA: ``{"id", "question", "answers": [{"text"}],
"is_impossible"}``
"""

from __future__ import annotations

from collections.abc import Iterator

from kbtrain.questions.base import Loaded, context
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.json_stream import rows_under
from kbtrain.questions.reading.rows import SourceRecord, unique
from kbtrain.records import Language, Question


def squad(file: DataFile) -> Iterator[Loaded]:
    """The paragraph is the gold passage. Impossible questions (marked, or without answers) have ``gold`` "none"."""
    yield from _questions(file, "squad", "en")


def squad_zh(file: DataFile) -> Iterator[Loaded]:
    """The same in Chinese (machine-translated SQuAD, CMRC 2018, DRCD)."""
    yield from _questions(file, "squad_zh", "zh")


def _questions(file: DataFile, dataset: str, language: Language) -> Iterator[Loaded]:
    for article in rows_under(file, "data"):
        title = article.text_or_empty("title").replace("_", " ")
        for paragraph in article.rows("paragraphs"):
            passage = context(dataset, title, paragraph.text("context"))
            for row in paragraph.rows("qas"):
                answers = _answers(row)
                question = Question(
                    id=row.identifier("id"),
                    text=row.text("question"),
                    answers=answers,
                    split=file.split,
                    dataset=dataset,
                    language=language,
                    gold_passages=(passage.id,) if answers else (),
                    gold="given" if answers else "none",
                    context_passages=(passage.id,),
                )
                yield Loaded(question, row.file, row.line, (passage,))


def _answers(row: SourceRecord) -> tuple[str, ...]:
    answers = unique(answer.gold_answer("text") for answer in row.rows("answers"))
    impossible = row.has("is_impossible") and row.flag("is_impossible")
    if impossible and any(answers):
        raise row.error("answers", "an impossible question has none")
    return () if impossible else answers
