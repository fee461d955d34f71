"""Multiple choice as instructions, the layout of LLM-Adapters (Hu et al. 2023) for OpenBookQA, ARC, PIQA, SIQA.

``{"instruction": "Please choose ...: QUESTION Answer1: ... Answer2: ... Answer format: ...", "answer": "answer2"}``
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kbtrain.questions.base import LETTERS, Loaded, load_row
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.rows import SourceRecord, format_value
from kbtrain.questions.reading.tables import any_rows

_LAYOUT = re.compile(r"^[^:]*: (.+?)\s+(?:Answer|Solution)1: (.+?)\s*Answer format: ", re.DOTALL)
_NEXT = re.compile(r"\s+(?:Answer|Solution)\d: ")
_KEY = re.compile(r"^(?:answer|solution)(\d)$")


def commonsense(file: DataFile) -> Iterator[Loaded]:
    """The question and its options are cut out of the instruction."""
    for number, row in enumerate(any_rows(file), 1):
        parts = _LAYOUT.match(row.text("instruction"))
        if not parts:
            raise row.error("instruction", "expected 'QUESTION', 'Answer1: ...', 'Answer2: ...' and 'Answer format:'")
        options = tuple(option.strip() for option in _NEXT.split(parts.group(2)))
        yield load_row(row, file, "commonsense", id=f"commonsense/{file.label}/{number}", text=parts.group(1).strip(),
                       answers=(_letter(row, len(options)),), options=options)  # fmt: skip


def _letter(row: SourceRecord, n_options: int) -> str:
    value = row.text("answer")
    match = _KEY.match(value)
    if not match or not 1 <= int(match.group(1)) <= n_options:
        raise row.error("answer", f"expected answer1 to answer{n_options}, found {format_value(value)}")
    return LETTERS[int(match.group(1)) - 1]
