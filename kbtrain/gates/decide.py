"""Decisions of a gate's folder about texts from anywhere: arguments, a file, a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, cast

from kbtrain.answers.writing import is_blank, language_of
from kbtrain.errors import HALVES, UserError, at
from kbtrain.gate.gate import Gate
from kbtrain.io import jsonl
from kbtrain.io.files import loads
from kbtrain.models.batching import windows
from kbtrain.questions.files import DataFile, data_file, text_lines
from kbtrain.questions.tables import PARQUET, TABLES, Cursor, any_rows
from kbtrain.records import Example, GateExample, TurnExample

BATCH = 64  # inputs decided before anything is printed, at most
STDIN = "standard input"
_FIELDS = ("question", "text")  # of a question, where none is named


def read_inputs(lines: Iterable[str], where: Path | str, field: str | None = None) -> Iterator[str | Example]:
    """One input a line: plain text, a JSON text, a JSON object with a field ``question`` or ``text`` (or ``field``) and
    perhaps ``source``, or a whole example.

    Blank lines are skipped. Raises :class:`UserError` naming file and line.
    """
    for number, line in enumerate(lines, 1):
        text = line.strip("\ufeff \t\r\n")
        if text.startswith("{"):
            yield _of_object(text, where, number, field)
        elif text.strip() and field is not None:  # a table's rows would be taken for questions
            raise UserError(
                f"{at(where, number)}: no JSON object; --field names a field of JSON lines, or a column of a .csv"
            )
        elif text.strip():
            yield _not_empty(_of_text(text), at(where, number))


def read_questions_file(path: Path, field: str | None = None) -> Iterator[str | Example]:
    """Inputs of a file: a row of a table, of Parquet or of a JSON list; else a line, as :func:`read_inputs` has it.

    Raises :class:`UserError` naming file, line and column.
    """
    file = data_file(path)
    if file.suffix in (*TABLES, PARQUET) or (file.suffix == ".json" and Cursor(file).peek() == "["):
        return _of_rows(file, field)
    return read_inputs((line for _, line in text_lines(file)), path, field)


def _of_rows(file: DataFile, field: str | None) -> Iterator[str | Example]:
    names = _FIELDS if field is None else (field,)
    for row in any_rows(file):
        name = next((name for name in names if row.has(name)), None)
        if name is None:
            expected, columns = " or ".join(f"'{name}'" for name in names), ", ".join(row.data)
            raise UserError(f"{at(row.file, row.line)}: no column {expected}; there is {columns}: name it by --field")
        yield _from_source(row.text(name), row.data.get("source"))


def _from_source(text: str, source: object) -> str | Example:
    """The question; with its source, where a text says it."""
    if not isinstance(source, str) or is_blank(source):
        return text
    return replace(GateExample.ask(text, language=language_of(text)), source=source.strip())


def _not_empty(text: str, place: str) -> str:
    if is_blank(text):
        raise UserError(f"{place}: empty; expected a question")
    if HALVES.search(text):
        raise UserError(f"{place}: half of a surrogate pair (broken \\u escape)")
    return text


def _of_text(text: str) -> str:
    """The text of a line: that in its quotation marks where the whole line is a JSON text."""
    try:
        value = loads(text) if text.startswith('"') else text
    except ValueError:  # a question that begins with a quotation
        return text
    return value if isinstance(value, str) else text


def _of_object(text: str, where: Path | str, number: int, field: str | None) -> str | Example:
    data = jsonl.value(text, where, number)
    if field is None and {"dialogue_id", "context"} <= data.keys():
        return jsonl.record(TurnExample, data, where, number)
    if field is None and {"id", "question_id"} <= data.keys():
        return jsonl.record(GateExample, data, where, number)
    names = (field,) if field is not None else _FIELDS
    name = next((name for name in names if name in data), names[0])
    if isinstance(value := data.get(name), str):
        return _from_source(_not_empty(value, at(where, number, name)), data.get("source"))
    fields, expected = ", ".join(list(data)[:20]) or "nothing", " or ".join(f"'{name}'" for name in names)
    raise UserError(
        f"{at(where, number)}: no field {expected} with a text in it; there is {fields}: name it by --field"
    )


def arriving(stream: IO[str], field: str | None = None) -> Iterator[list[str | Example]]:
    """The inputs of a stream, each by itself as it comes: a process that waits for a decision gets it at once."""
    try:
        for one in read_inputs(stream, STDIN, field):
            yield [one]
    except UnicodeDecodeError:
        raise UserError(f"{STDIN}: not UTF-8 text") from None


def decisions(
    gate: Gate, inputs: Iterable[str | Example], threshold: float | None = None
) -> Iterator[dict[str, object]]:
    """For each input its text (or the example's id), the gate's name, and the fields of a
    :class:`~kbtrain.records.Decision`."""
    gate.threshold_or(threshold)  # a gate without one is an error before any input comes
    for group in windows(inputs, BATCH):
        texts = [bare_text(value) for value in group]
        # a gate that reads passages refuses a bare question, one with its source too
        read = [text or value for text, value in zip(texts, group, strict=True)] if gate.needs_evidence else group
        for value, text, decision in zip(group, texts, gate.decide(read, threshold), strict=True):
            of = {"text": text} if text else {"id": cast("Example", value).id}
            yield {**of, "gate": gate.name, **asdict(decision)}


def bare_text(value: str | Example) -> str | None:
    """The text of a bare question, one with its source too; None for an example with an id or passages, and a turn."""
    if isinstance(value, GateExample):
        return value.question if value.id == value.question and not value.hits else None
    return value if isinstance(value, str) else None
