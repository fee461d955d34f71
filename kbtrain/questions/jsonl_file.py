"""Questions from a plain JSONL file: ``{"question": "...", "answers": ["..."]}`` a line is enough."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kbtrain import jsonl
from kbtrain.errors import UserError, at
from kbtrain.records import Question

_OTHER_NAMES = {"question": "text", "answer": "answers"}


def jsonl_questions(path: Path | None) -> Iterator[Question]:
    """Stream a file of questions.

    Needed a line: ``text`` (or ``question``) and ``answers`` (or ``answer``; one string or a list). Any other field of
    :class:`Question` may stand there too. Defaults: ``id`` = file name and line, ``split`` test, ``dataset`` = file
    name, and with ``options`` form ``choice`` graded by ``option``. Raises :class:`UserError` with file, line, field.
    """
    if path is None:
        raise UserError("data set 'jsonl' needs a path to a file of questions")
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield jsonl.parse(Question, _complete(line, path, number), path, number)
    except FileNotFoundError:
        raise UserError(f"{at(path)}: no such file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{at(path)}: not UTF-8 text (byte {error.start})") from None


def _complete(line: str, path: Path, number: int) -> str:
    try:
        data = json.loads(line)
    except json.JSONDecodeError:
        return line  # parse() names the place
    if not isinstance(data, dict):
        return line
    row: dict[str, Any] = {_OTHER_NAMES.get(key, key): value for key, value in data.items()}
    if isinstance(row.get("answers"), str):
        row["answers"] = [row["answers"]]
    defaults: dict[str, Any] = {"id": f"{path.stem}-{number}", "split": "test", "dataset": path.stem}
    if row.get("options"):
        defaults |= {"form": "choice", "grading": "option"}
    return json.dumps({**defaults, **row}, ensure_ascii=False)
