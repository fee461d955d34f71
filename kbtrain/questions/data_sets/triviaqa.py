"""TriviaQA (Joshi et al. 2017): ``{"Data": [{"Question", "QuestionId", "Answer": {"Value", "Aliases", ...}}]}``.

The evidence documents are files of their own in the release and are not read here.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbtrain.questions.base import Loaded
from kbtrain.questions.data_sets.nq_open import dpr_table
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.json_stream import rows_under
from kbtrain.questions.reading.rows import SourceRecord, unique
from kbtrain.records import Question


def triviaqa(file: DataFile) -> Iterator[Loaded]:
    """All aliases count, the value first; graded by exact match. DPR's tables (.csv, .tsv) are read too."""
    if file.suffix in {".csv", ".tsv"}:
        yield from dpr_table(file, "triviaqa")
        return
    for row in rows_under(file, "Data"):
        answers = _answers(row.row("Answer")) if row.has("Answer") else ()
        question = Question(
            id=row.identifier("QuestionId"),
            text=row.text("Question"),
            answers=answers,
            split=file.split,
            dataset="triviaqa",
            grading="exact",
            gold="given" if answers else "hidden",  # the test files have no answers
        )
        yield Loaded(question, row.file, row.line)


def _answers(answer: SourceRecord) -> tuple[str, ...]:
    lists = [key for key in ("Aliases", "HumanAnswers") if answer.has(key) and answer.values(key)]
    more = [text for key in lists for text in answer.gold_answers(key)]
    return unique([answer.gold_answer("Value"), *more])
