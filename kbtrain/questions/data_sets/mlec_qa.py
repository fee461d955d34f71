"""MLEC-QA (Li et al. 2021): Chinese medical licensing examinations.

``{"qid", "qtype", "qtext", "qimage", "options": {"A": ..., "E": ...}, "answer": "B"}`` in a list or JSON Lines; the
file's name has the field (Clinic, Stomatology, PublicHealth, TCM, CWM) and the split.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from kbtrain.questions.base import LETTERS, Loaded, letter, load_row
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.rows import SourceRecord
from kbtrain.questions.reading.tables import any_rows


def mlec_qa(file: DataFile) -> Iterator[Loaded]:
    """MLEC-QA's questions; the relation is the field. Questions that need an image are kept, and mention it."""
    field = re.sub(r"_(train|dev|test)$", "", PurePosixPath(file.label).name)
    for row in any_rows(file):
        options = _options(row.row("options"))
        yield load_row(row, file, "mlec_qa",
                       id=f"mlec_qa/{field}/{file.split_word or file.split}/{row.identifier('qid')}",
                       text=row.text("qtext"), answers=(letter(row, "answer", len(options)),), language="zh",
                       options=options, relation=field)  # fmt: skip


def _options(row: SourceRecord) -> tuple[str, ...]:
    """In the order of their letters, which must be A, B, ... without a gap."""
    names = sorted(row.data)
    if names != list(LETTERS[: len(names)]):
        raise row.error("A", f"expected options A, B, ..., found {', '.join(names) or 'none'}"[:200])
    return tuple(row.text(name) for name in names)
