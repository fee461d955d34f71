"""Questions with answers from elsewhere: JSON Lines, or a table, with columns for a model's answers and scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kbtrain.answers.thoughts import ReadAnswer, read_answer, split_thought
from kbtrain.answers.writing import is_blank
from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.questions.base import Columns, LeftOutAnswers
from kbtrain.questions.checks import FirstSeen, check_question, leak_key
from kbtrain.questions.collect import share_of, split_of
from kbtrain.questions.columns import mapped, reach
from kbtrain.questions.files import DataFile, data_files
from kbtrain.questions.gold import without_placeholders
from kbtrain.questions.rows import SourceRecord, format_value, plain_answer
from kbtrain.questions.tables import OBJECTS, TABLES, any_rows
from kbtrain.records import GREEDY, Condition, Question, Sample, SampleSet, Split


@dataclass(frozen=True)
class AnswerColumns:
    """Columns of the fields (``a.b`` reaches into an object).

    ``answers`` and ``stated`` (the file's own verdict: true, false, 1, 0, or nothing) are by condition; ``scores``
    by the gate's name, a leading ``-`` where lower means that retrieval is more needed; rows may lack some of both.
    ``splits``: the file's names -> kbtrain's. ``dev_share`` of the train rows becomes dev, by a hash of the id;
    ``shares`` of train, dev and test make all splits instead, by a hash of the question, or of its group.
    """

    questions: Columns
    answers: Mapping[Condition, str]
    stated: Mapping[Condition, str] = field(default_factory=dict)
    scores: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, Split] = field(default_factory=dict)
    grading: Literal["contains", "exact"] = "contains"
    dev_share: float = 0.0
    shares: Sequence[float] | None = None
    placeholders: Sequence[str] = ()  # texts for a missing gold answer, beside the known ones


@dataclass(frozen=True)
class Answered:
    """A question, the answers that its row has and the file's verdicts on them by condition, and its scores.

    ``gold`` of the question is "none" where the row has no reference answer: such a question gets no label.
    """

    question: Question
    answers: dict[Condition, ReadAnswer]
    stated: dict[Condition, bool | None]
    scores: dict[str, float]
    left_out: LeftOutAnswers = field(default_factory=LeftOutAnswers)  # of the gold answers
    place: str = ""  # file and line

    @property
    def has_both(self) -> bool:
        """True if it was answered without and with passages; else the row says nothing about a search."""
        return {"llm", "rag"} <= self.answers.keys()

    def sample_sets(self) -> list[SampleSet]:
        """As the store keeps them: greedy answers alone. Numbers of tokens and probabilities are not known: 0."""
        return [
            SampleSet(self.question.id, condition, (), Sample(GREEDY, answer.text, 0, answer.finish, 0.0), 0)
            for condition, answer in self.answers.items()
        ]


def read_answered(path: Path, columns: AnswerColumns) -> Iterator[Answered]:
    """Stream a file's (archive's, folder's) rows, each checked. Raises :class:`UserError` with file, line and column;
    at the end for a column of answers, scores or verdicts that is missing in all rows."""
    columns_with_values: set[str] = set()
    n, with_gold, lacking, there = 0, 0, 0, dict[str, object]()
    ids = FirstSeen()
    by_shares: Split | None = None if columns.shares is None else "test"
    for file in data_files(path, (*OBJECTS, *TABLES), split=by_shares):
        for number, row in enumerate(any_rows(file), 1):
            made = _answered(row, number, file, columns)
            check_question(made.question, row.file, row.line, ids)
            columns_with_values.update(columns.scores[gate] for gate in made.scores)
            columns_with_values.update(columns.stated[c] for c, right in made.stated.items() if right is not None)
            columns_with_values.update(columns.answers[c] for c, answer in made.answers.items() if not answer.is_empty)
            with_gold += bool(made.question.answers)
            lacking += bool(made.question.answers) and not made.has_both
            n, there = n + 1, row.data
            yield made
    if not n:
        raise UserError(f"{at(path)}: no rows in it")
    kinds: dict[str, Mapping[Any, str]] = {"answer": columns.answers, "score": columns.scores, "stated": columns.stated}
    for kind, name, column in ((kind, *pair) for kind, named in kinds.items() for pair in named.items()):
        if column not in columns_with_values:
            none = f"{kind} '{name}': no row has a value under '{column.removeprefix('-')}'"
            raise UserError(f"{at(path)}: {none}; there is {', '.join(list(there)[:20])}")
    if lacking > with_gold / 2:
        raise UserError(
            f"{at(path)}: {lacking} of {with_gold} rows lack an answer; answer each without and with passages"
        )


def _answered(row: SourceRecord, number: int, file: DataFile, columns: AnswerColumns) -> Answered:
    split = _split(row, columns) if columns.shares is None else file.split  # then no column is asked for it
    read = dataclasses.replace(columns.questions, split=split)
    loaded = mapped(row, read, f"{file.label}-{number}", file.label, file.split)
    loaded = without_placeholders(loaded, columns.placeholders)
    question = loaded.question
    own = reach(row, str(columns.questions.names.get("grading", "grading")), optional=True)
    if question.form == "open" and (own is None or is_blank(str(own))):
        question = dataclasses.replace(question, grading=columns.grading)
    if columns.shares is not None:
        question = dataclasses.replace(question, split=split_of(loaded.group or leak_key(question), columns.shares))
    elif question.split == "train" and share_of(question.id) < columns.dev_share:
        question = dataclasses.replace(question, split="dev")
    answers = {c: answer for c, name in columns.answers.items() if (answer := _answer(row, name, file)) is not None}
    stated = {condition: _verdict(row, column) for condition, column in columns.stated.items()}
    return Answered(question, answers, stated, _scores(row, columns.scores), loaded.left_out, at(row.file, row.line))


def _split(row: SourceRecord, columns: AnswerColumns) -> Split | None:
    """Split by the map of split names; None: by the column or the file's name."""
    if not columns.splits:
        return None
    column = str(columns.questions.names.get("split", "split"))
    word = reach(row, column)
    if not isinstance(word, str) or word not in columns.splits:
        hint = did_you_mean(str(word), columns.splits)
        raise row.error(column, f"no split for {format_value(word)} in splits; {hint}")
    return columns.splits[word]


def _answer(row: SourceRecord, column: str, file: DataFile) -> ReadAnswer | None:
    """The answer without its reasoning; None where the row has none: no such field, null, or a table's empty cell."""
    value = plain_answer(reach(row, column, optional=True))
    if value is None or (file.suffix in TABLES and is_blank(str(value))):
        return None
    if not isinstance(value, str):
        raise row.error(column, f"expected an answer (text), found {type(value).__name__} {format_value(value)}")
    return read_answer(split_thought(row.check_text(column, value)), "eos")


def _verdict(row: SourceRecord, column: str) -> bool | None:
    value = reach(row, column, optional=True)
    if value is None or not str(value).strip():  # a table has texts alone; few people press a thumb
        return None
    return row.having({column: value}).flag(column)


def _scores(row: SourceRecord, columns: Mapping[str, str]) -> dict[str, float]:
    scores = {}
    for gate, column in columns.items():
        name = column.removeprefix("-")
        value = reach(row, name, optional=True)
        if value is not None and str(value).strip():  # a table has texts alone
            number = row.having({name: value}).number(name)
            scores[gate] = -number if column.startswith("-") else number
    return scores
