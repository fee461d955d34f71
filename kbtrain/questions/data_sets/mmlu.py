"""MMLU, C-Eval and CMMLU: one table per subject and split, four options, the answer's letter.

MMLU (Hendrycks et al. 2021) has no header; C-Eval (Huang et al. 2023): id, question, A-D, answer, explanation, and no
answer in its test files; CMMLU (Li et al. 2023): number, Question, A-D, Answer. In all three ``dev`` are examples for
the prompt, which count as training questions here, and ``val`` is the development set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from kbtrain.questions.base import Loaded, letter
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.rows import SourceRecord
from kbtrain.questions.reading.tables import csv_cells, csv_rows
from kbtrain.records import Language, Question

_OPTIONS = ("A", "B", "C", "D")
_MMLU = ("question", *_OPTIONS, "answer")


def mmlu(file: DataFile) -> Iterator[Loaded]:
    """The relation is the subject."""
    for number, (line, cells) in enumerate(csv_cells(file)):
        row = SourceRecord(dict(zip(_MMLU, cells, strict=False)), file.name, line)
        if len(cells) != len(_MMLU):
            raise row.error(_MMLU[min(len(cells), 5)], f"expected {len(_MMLU)} columns, found {len(cells)}")
        yield _loaded(file, row, str(number), "mmlu", "en")


def ceval(file: DataFile) -> Iterator[Loaded]:
    """The test answers are not published."""
    for row in csv_rows(file, ("id", "question", *_OPTIONS)):
        yield _loaded(file, row, row.identifier("id"), "ceval", "zh", hidden="answer" not in row.data)


def cmmlu(file: DataFile) -> Iterator[Loaded]:
    """The first column, the row's number, has no name."""
    for number, row in enumerate(csv_rows(file, ("Question", *_OPTIONS, "Answer"))):
        plain = {"question" if key == "Question" else "answer" if key == "Answer" else key: row.data[key]
                 for key in row.data}  # fmt: skip
        yield _loaded(file, SourceRecord(plain, row.file, row.line), str(number), "cmmlu", "zh")


def _loaded(
    file: DataFile, row: SourceRecord, number: str, dataset: str, language: Language, hidden: bool = False
) -> Loaded:
    subject = re.sub(r"_(train|dev|val|test)$", "", PurePosixPath(file.label).name)
    question = Question(
        id=f"{dataset}/{file.split_word or file.split}/{subject}/{number}",
        text=row.text("question"),
        answers=() if hidden else (letter(row, "answer", len(_OPTIONS)),),
        split=file.split,
        dataset=dataset,
        language=language,
        form="choice",
        grading="option",
        options=tuple(row.text(option) for option in _OPTIONS),
        relation=subject,
        gold="hidden" if hidden else "given",
    )
    return Loaded(question, row.file, row.line)
