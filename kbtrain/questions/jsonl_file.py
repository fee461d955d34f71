"""Questions from a plain JSONL file: ``{"question": "...", "answers": ["..."]}`` a line is enough."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kbtrain import jsonl
from kbtrain.records import Question

_OTHER_NAMES = {"question": "text", "answer": "answers"}


def jsonl_questions(path: Path) -> Iterator[tuple[int, Question]]:
    """Stream (line number, question).

    Needed a line: ``text`` (or ``question``) and ``answers`` (or ``answer``; one string or a list). Any other field of
    :class:`Question` may stand there too. Defaults: ``id`` = file name and line, ``split`` test, ``dataset`` = file
    name, and with ``options`` form ``choice`` graded by ``option``. Raises :class:`UserError` with file, line, field.
    """
    for number, line in jsonl.lines(path):
        yield number, jsonl.parse(Question, _complete(line, path, number), path, number)


def _complete(line: str, path: Path, number: int) -> str:
    try:
        data = json.loads(line)
    except json.JSONDecodeError:
        return line  # parse() names the place
    if not isinstance(data, dict):
        return line
    row: dict[str, Any] = {_OTHER_NAMES.get(str(key), str(key)): value for key, value in data.items()}
    if isinstance(row.get("answers"), str):
        row["answers"] = [row["answers"]]
    defaults: dict[str, Any] = {"id": f"{path.stem}-{number}", "split": "test", "dataset": path.stem}
    if row.get("options"):
        defaults |= {"form": "choice", "grading": "option"}
    return json.dumps({**defaults, **row}, ensure_ascii=False)
