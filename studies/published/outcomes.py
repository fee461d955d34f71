"""Questions with verdicts on several models: right or wrong without, with one and with many retrievals, no answers.

One JSON Lines row a question: ``{"id", "dataset", "split", "question", "answers", "llms": {MODEL: {"none", "one",
"many"}}}``. A model whose answers were published may also carry ``em_none`` and so on: the same answers by another
grading. ``songs.jsonl``-like rows (closed book) have ``{"llms": {MODEL: {"correct"}}}`` instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from kbtrain.errors import UserError, at
from kbtrain.questions.checks import FirstSeen
from kbtrain.questions.files import DataFile, data_files
from kbtrain.questions.rows import SourceRecord, format_value
from kbtrain.questions.tables import OBJECTS, any_rows
from kbtrain.records import Question, Split

Grading = Literal["published", "em"]
Retrievals = Literal["none", "one", "many"]
RETRIEVALS: tuple[Retrievals, ...] = ("none", "one", "many")


@dataclass(frozen=True)
class Judged:
    """A question, and by (model, grading) whether its answer was right with each number of retrievals.

    ``scores``: other people's gates' numbers by dotted path into the row, as they are in the file
    (``seakr.eigen_score``).
    """

    question: Question
    right: Mapping[tuple[str, Grading], Mapping[Retrievals, bool]]
    scores: Mapping[str, float]


@dataclass(frozen=True)
class ClosedBook:
    """A question, and by model whether the answer without retrieval was right, and the model's own confidence in it.

    ``confidence`` lacks models with an empty answer. ``known_before``: numbers that a gate may read, as they are known
    before any answer. ``doubtful``: models whose verdict is not clear, for the answer is empty or part of a right name.
    """

    question: Question
    right: Mapping[str, bool]
    confidence: Mapping[str, float]
    known_before: Mapping[str, float]
    doubtful: frozenset[str] = frozenset()


def read_judged(path: Path) -> Iterator[Judged]:
    """Stream a file's rows, each checked. Raises :class:`UserError` with file, line and field."""
    for file, row in _rows(path):
        split = cast(Split, row.one_of("split", ("train", "dev", "test")))
        question = _question(row, split, file)
        right: dict[tuple[str, Grading], dict[Retrievals, bool]] = {}
        llms = row.row("llms")
        for model in llms.data:
            verdicts = llms.row(model)
            right[model, "published"] = {name: _verdict(verdicts, name) for name in RETRIEVALS}
            if verdicts.has("em_none"):
                right[model, "em"] = {name: _verdict(verdicts, f"em_{name}") for name in RETRIEVALS}
        if not right:
            raise row.error("llms", "names no model")
        yield Judged(question, right, {**_numbers(row, "seakr"), **_numbers(row, "adaptive_rag_t5")})


def read_closed_book(path: Path) -> Iterator[ClosedBook]:
    """Stream the rows, each checked; all are train questions. Raises :class:`UserError` with file, line and field."""
    for file, row in _rows(path):
        llms = row.row("llms")
        if not llms.data:
            raise row.error("llms", "names no model")
        models = {model: llms.row(model) for model in llms.data}
        numbers = _numbers(row, "popularity")
        popularity = {name: numbers[name] for name in numbers if name.startswith("popularity.question_")}
        below = next((name for name in popularity if popularity[name] < 0), None)
        if below is not None:
            raise row.error(below, f"expected a count, found {popularity[below]}")
        yield ClosedBook(
            _question(row, "train", file),
            {model: _verdict(entry, "correct") for model, entry in models.items()},
            {model: entry.number("confidence") for model, entry in models.items() if entry.has("confidence")},
            popularity,
            frozenset(
                model for model, entry in models.items() if entry.data.get("part_of_name") or entry.data.get("empty")
            ),
        )


def _rows(path: Path) -> Iterator[tuple[DataFile, SourceRecord]]:
    n = 0
    ids = FirstSeen()
    for file in data_files(path, OBJECTS):
        for row in any_rows(file):
            earlier = ids.add(row.identifier("id"), row.file, row.line)
            if earlier is not None:
                raise row.error("id", f"duplicate {row.identifier('id')!r}, first in line {earlier[1]}")
            n += 1
            yield file, row
    if not n:
        raise UserError(f"{at(path)}: no rows in it")


def _question(row: SourceRecord, split: Split, file: DataFile) -> Question:
    dataset = row.text("dataset") if row.has("dataset") else file.label
    return Question(
        id=row.identifier("id"),
        text=row.text("question"),
        answers=row.texts("answers"),
        split=split,
        dataset=dataset,
        grading="exact",
        relation=dataset,
    )


def _verdict(row: SourceRecord, key: str) -> bool:
    value = row.data.get(key)
    if value is None:
        raise row.wrong(key, "1 or 0")
    if value not in (0, 1):
        raise row.error(key, f"expected 1 or 0, found {format_value(value)}")
    return bool(value)


def _numbers(row: SourceRecord, key: str) -> dict[str, float]:
    """The numbers of an object under a key, by dotted path; nothing where it is missing or null."""
    if not row.has(key):
        return {}
    inner = row.row(key)
    numeric = [name for name, value in inner.data.items() if isinstance(value, int | float)]
    return {f"{key}.{name}": inner.number(name) for name in numeric}
