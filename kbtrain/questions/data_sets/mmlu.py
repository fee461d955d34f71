"""MMLU, C-Eval and CMMLU: one table per subject and split, four options, the answer's letter.

MMLU (Hendrycks et al. 2021) has no header; C-Eval (Huang et al. 2023): id, question, A-D, answer, explanation, and no
answer in its test files; CMMLU (Li et al. 2023): number, Question, A-D, Answer. In all three ``dev`` are examples for
the prompt, which count as training questions here, and ``val`` is the development set.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

from kbtrain.questions.base import Loaded, letter, load_row
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.parquet import PARQUET
from kbtrain.questions.reading.rows import SourceRecord
from kbtrain.questions.reading.tables import any_rows, csv_cells, csv_rows
from kbtrain.records import Language

_OPTIONS = ("A", "B", "C", "D")
_MMLU = ("question", *_OPTIONS, "answer")


def mmlu(file: DataFile) -> Iterator[Loaded]:
    """The relation is the subject. The hub's rows name it, list the options and count the answer from 0."""
    if file.suffix == PARQUET:
        yield from _hub_rows(file)
        return
    for number, (line, cells) in enumerate(csv_cells(file)):
        row = SourceRecord(dict(zip(_MMLU, cells, strict=False)), file.name, line)
        if len(cells) != len(_MMLU):
            raise row.error(_MMLU[min(len(cells), 5)], f"expected {len(_MMLU)} columns, found {len(cells)}")
        yield _load_row(file, row, str(number), "mmlu", "en")


def _hub_rows(file: DataFile) -> Iterator[Loaded]:
    places = Counter[str]()
    for row in any_rows(file):
        options, subject = row.texts("choices", repeats=True), row.text("subject")
        answer = int(row.number("answer"))
        if len(options) != len(_OPTIONS) or not 0 <= answer < len(_OPTIONS):
            raise row.error("answer", f"expected the place of one of {len(_OPTIONS)} choices, from 0")
        cells = dict(zip(_MMLU, (row.text("question"), *options, _OPTIONS[answer]), strict=True))
        yield _load_row(file, row.having(cells), str(places[subject]), "mmlu", "en", subject)
        places[subject] += 1


def ceval(file: DataFile) -> Iterator[Loaded]:
    """The test answers are not published."""
    needed = ("id", "question", *_OPTIONS)
    for row in any_rows(file) if file.suffix == PARQUET else csv_rows(file, needed):
        yield _load_row(file, row, row.identifier("id"), "ceval", "zh")


def cmmlu(file: DataFile) -> Iterator[Loaded]:
    """The first column, the row's number, has no name."""
    rows = any_rows(file) if file.suffix == PARQUET else csv_rows(file, ("Question", *_OPTIONS, "Answer"))
    for number, row in enumerate(rows):
        plain = {"question" if key == "Question" else "answer" if key == "Answer" else key: row.data[key]
                 for key in row.data}  # fmt: skip
        yield _load_row(file, SourceRecord(plain, row.file, row.line), str(number), "cmmlu", "zh")


def _load_row(
    file: DataFile,
    row: SourceRecord,
    number: str,
    dataset: str,
    language: Language,
    subject: str = "",
) -> Loaded:
    hidden = dataset == "ceval" and not row.text_or_empty("answer")  # C-Eval's test answers are not published
    subject = subject or re.sub(r"_(train|dev|val|test)$", "", PurePosixPath(file.label).name)
    return load_row(row, file, dataset, id=f"{dataset}/{file.split_word or file.split}/{subject}/{number}",
                    text=row.text("question"), answers=() if hidden else (letter(row, "answer", len(_OPTIONS)),),
                    language=language, options=tuple(row.text(option) for option in _OPTIONS), relation=subject,
                    gold="hidden" if hidden else "given")  # fmt: skip
