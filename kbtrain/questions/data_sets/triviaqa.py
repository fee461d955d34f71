"""TriviaQA (Joshi et al. 2017): ``{"Data": [{"Question", "QuestionId", "Answer": {"Value", "Aliases", ...}}]}``.
On the Hugging Face hub: rows of ``{"question", "question_id", "answer": {"value", "aliases", ...}}``.

The evidence documents are files of their own in the release and are not read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kbtrain.questions.base import Loaded, load_row
from kbtrain.questions.data_sets.nq_open import dpr_table, is_dpr_table
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.json_stream import first_key, rows_under
from kbtrain.questions.reading.parquet import PARQUET
from kbtrain.questions.reading.rows import SourceRecord, unique
from kbtrain.questions.reading.tables import any_rows

_HUB = {"Question": "question", "QuestionId": "question_id", "Answer": "answer", "Value": "value",
        "Aliases": "aliases", "HumanAnswers": "human_answers"}  # fmt: skip


def triviaqa(file: DataFile) -> Iterator[Loaded]:
    """All aliases count, the value first; graded by exact match. DPR's tables are read too."""
    if is_dpr_table(file):
        yield from dpr_table(file, "triviaqa")
        return
    flat = file.suffix == PARQUET or first_key(file) in {None, *_HUB.values()}
    names = _HUB if flat else {name: name for name in _HUB}
    for row in any_rows(file) if flat else rows_under(file, "Data"):
        answers = _answers(row.row(names["Answer"]), names) if row.has(names["Answer"]) else ()
        yield load_row(row, file, "triviaqa", id=row.identifier(names["QuestionId"]), text=row.text(names["Question"]),
                       answers=answers, grading="exact", gold="given" if answers else "hidden")  # fmt: skip


def _answers(answer: SourceRecord, names: Mapping[str, str]) -> tuple[str, ...]:
    lists = [names[key] for key in ("Aliases", "HumanAnswers") if answer.has(names[key]) and answer.values(names[key])]
    more = [text for key in lists for text in answer.gold_answers(key)]
    return unique([answer.gold_answer(names["Value"]), *more])
