"""Questions from a plain JSONL file: ``{"question": "...", "answers": ["..."]}`` a line is enough."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kbtrain import jsonl
from kbtrain.questions.base import Loaded
from kbtrain.questions.data_sets.columns import Columns, mapped
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.json_stream import json_rows, loads
from kbtrain.questions.reading.text import text_lines
from kbtrain.records import Question

_OTHER_NAMES = {"question": "text", "answer": "answers"}


def jsonl_questions(file: DataFile, columns: Columns) -> Iterator[Loaded]:
    """With a column map any objects; without one our own fields.

    Needed a line: ``text`` (or ``question``) and ``answers`` (or ``answer``; one string or a list). Any other field of
    :class:`Question` may stand there too. Defaults: ``id`` = file name and line, ``split`` from the file's name,
    ``dataset`` = file name, and with ``options`` form ``choice`` graded by ``option``.
    """
    if columns.names:
        for number, row in enumerate(json_rows(file), 1):
            yield mapped(row, columns, f"{file.label}-{number}", file.label, file.split)
        return
    for number, line in text_lines(file):
        if line.strip():
            complete = _complete(line, loads(file, number, line), file, number, columns)
            yield Loaded(jsonl.parse(Question, complete, file.name, number), file.name, number)


def _complete(line: str, data: Any, file: DataFile, number: int, columns: Columns) -> str:
    """The line with the defaults filled in."""
    if not isinstance(data, dict):
        return line  # parse() says what is wrong
    row: dict[str, Any] = {_OTHER_NAMES.get(str(key), str(key)): value for key, value in data.items()}
    if isinstance(row.get("answers"), str):
        row["answers"] = [row["answers"]]
    defaults: dict[str, Any] = {
        "id": f"{file.label}-{number}", "split": file.split, "dataset": file.label, "language": columns.language
    }  # fmt: skip
    if row.get("options"):
        defaults |= {"form": "choice", "grading": "option"}
    return json.dumps({**defaults, **row}, ensure_ascii=False)
