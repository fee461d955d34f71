"""FreshQA (Vu et al. 2023): a table with up to ten answers, how fast they change, hops, and false premises."""

from __future__ import annotations

from collections.abc import Iterator

from kbtrain.questions.base import Loaded, load_row
from kbtrain.questions.reading.files import SPLITS, DataFile
from kbtrain.questions.reading.rows import SourceRecord, format_value, unique
from kbtrain.questions.reading.tables import csv_rows

_ANSWERS = tuple(f"answer_{i}" for i in range(10))
_NEEDED = ("question", "id", "split", "false_premise", "num_hops", "fact_type", "answer_0")
_HOPS = {"one-hop": 1, "multi-hop": 2}
_FACTS = ("never-changing", "slow-changing", "fast-changing")
_NOTICE_ROWS = 3  # newer releases begin with a warning not to publish the answers


def freshqa(file: DataFile) -> Iterator[Loaded]:
    """FreshQA's questions; ``hops`` 2 means two or more. Each row names its split."""
    for row in csv_rows(file, _NEEDED, rows_before_header=_NOTICE_ROWS):
        word = row.text("split").lower()
        if word not in SPLITS:
            raise row.error("split", f"expected TRAIN, DEV or TEST, found {format_value(word)}")
        yield load_row(row, file, "freshqa", id=f"freshqa/{row.identifier('id')}", text=row.text("question"),
                       answers=_answers(row), split=SPLITS[word], hops=_HOPS[row.one_of("num_hops", _HOPS)],
                       fact_type=row.one_of("fact_type", _FACTS), false_premise=row.flag("false_premise"))  # fmt: skip


def _answers(row: SourceRecord) -> tuple[str, ...]:
    first = row.gold_answer("answer_0")
    return unique([first, *(text for key in _ANSWERS[1:] if (text := row.text_or_empty(key)))])
