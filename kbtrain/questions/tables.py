"""CSV, TSV, Parquet and JSON files of any size, one row at a time, each with its first line; and lists in a cell.

JSON is a list, a list under a key, an object of objects, or JSON Lines.

Lists are as Python or numpy print them: ``['a', "b"]``, ``['a' 'b']``, ``array([...], dtype=...)``. numpy skips
the commas, and Python would read ``'a' 'b'`` as one text: so commas are put back between tokens.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import io
import json
import math
import re
import tokenize
from collections.abc import Iterator, Sequence
from datetime import date, time
from decimal import Decimal
from typing import Any

import numpy as np

from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.io import jsonl
from kbtrain.io.files import FOREIGN, BadField
from kbtrain.io.text_files import chunks_of, first_line, open_seekable
from kbtrain.questions.files import DataFile, text_lines
from kbtrain.questions.rows import SourceRecord, format_value

PARQUET = ".parquet"
TABLES = (".csv", ".tsv")
OBJECTS = (".json", ".jsonl", PARQUET)
_QUOTED = re.compile(r'"[^"]*"?')  # the last may continue in the next line
MAX_CELL = 1 << 25  # characters: room for a long context, but not for all that follows an open quote


def csv_cells(file: DataFile, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every row that is not blank. Raises :class:`UserError` for quotes that do not match.

    A first line ``sep=;`` gives spreadsheets the table's separator, and is skipped. A table whose header has another
    sign in place of the ``delimiter``, quotes aside, is separated by that: by ";" where numbers have a comma.
    """
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL))
    numbered = text_lines(file)
    line, head = next(numbered, (0, ""))
    start, first = 1, [head]
    if separator := re.fullmatch(r"sep=([,;|\t])", head.rstrip("\r\n"), re.IGNORECASE):
        delimiter, start, first = separator[1], 2, []
    elif delimiter not in (bare := _QUOTED.sub("", head)):
        delimiter = next((sign for sign in ";\t|," if sign in bare), delimiter)

    def lines() -> Iterator[str]:
        nonlocal line
        yield from first
        for line, text in numbered:  # noqa: B007
            yield "\t".join(map(_escaped, text.split("\t"))) if delimiter == "\t" and '"' in text else text

    try:
        for cells in csv.reader(lines(), delimiter=delimiter, strict=True):
            if delimiter == "\t" and any(re.search(r"\n[^\t\n]+\t", cell) for cell in cells):
                raise csv.Error("a quote opens a cell that holds the rows below it; close it, or write it twice")
            if cells:
                yield start, cells
            start = line + 1
    except csv.Error as error:
        raise UserError(f"{at(file.name, start)}: broken CSV in the row that begins here ({error})") from None


def _escaped(cell: str) -> str:
    """A cell between tabs, in quotes where only a part of it is: most writers of such tables know no quotes."""
    if not re.match(r'"(?:[^"]|"")*"[^"\r\n]', cell):
        return cell
    end = cell[len(cell.rstrip("\r\n")) :]
    return '"' + cell.rstrip("\r\n").replace('"', '""') + '"' + end


def csv_rows(file: DataFile, required: Sequence[str] = (), rows_before_header: int = 0) -> Iterator[SourceRecord]:
    """Rows by the names in the header, which must have the ``required`` columns and may follow a few other rows.

    ``.tsv`` is separated by tabs, anything else by commas or as :func:`csv_cells` finds.
    """
    header: list[str] | None = None
    line = 0
    for line, cells in csv_cells(file, "\t" if file.suffix == ".tsv" else ","):
        if header is None:
            names = [cell.strip() for cell in cells]
            if rows_before_header and required[0] not in names:
                rows_before_header -= 1
            else:
                header = _checked_header(file, line, names, required)
        elif not any(cell.strip() for cell in cells):
            continue  # Excel writes rows of separators alone
        elif len(cells) != len(header):
            raise UserError(f"{at(file.name, line)}: {len(cells)} columns, but the header has {len(header)}")
        else:
            yield SourceRecord(dict(zip(header, cells, strict=True)), file.name, line)
    if header is None:
        reason = f"no header with a column '{required[0]}'" if required else "no header"
        raise UserError(f"{at(file.name, max(line, 1))}: {reason}")


def parquet_rows(file: DataFile) -> Iterator[SourceRecord]:
    """The rows with their columns as fields; a column of structs is an object. A row's line is its number from 1."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    number = 0
    with open_seekable(file.raw, file.name) as stream:
        try:
            table = ParquetFile(stream)
            _checked_header(file, 1, table.schema_arrow.names, ())
            for batch in table.iter_batches(batch_size=1024):
                for data in batch.to_pylist():
                    number += 1
                    cells = {name: _as_json(value, batch.schema.field(name).type) for name, value in data.items()}
                    yield SourceRecord(cells, file.name, number)
        except pyarrow.ArrowException as error:
            reason = first_line(error)
            raise UserError(f"{at(file.name)}: cannot be read as Parquet ({reason:.100}); get the file again") from None


_PRECISION = {16: np.float16, 32: np.float32}


def _as_json(value: Any, kind: Any) -> Any:
    """A Parquet value as JSON would have it: NaN as null, a number of less than double precision without the digits
    that it does not have (0.1), dates as text. ``kind``: its type in the file."""
    if isinstance(value, list):
        inner = getattr(kind, "value_type", None)
        return [_as_json(one, inner) for one in value]
    if isinstance(value, dict):
        return {name: _as_json(inner, kind.field(name).type) for name, inner in value.items()}
    if isinstance(value, float):
        precise = _PRECISION.get(getattr(kind, "bit_width", 64))
        return None if math.isnan(value) else float(str(precise(value))) if precise else value
    if isinstance(value, Decimal):
        if value == value.to_integral_value():
            return int(value)
        return float(value) if Decimal(repr(float(value))) == value else f"{value:f}"
    if isinstance(value, date | time):
        return value.isoformat().removesuffix("T00:00:00")
    return value


def any_rows(file: DataFile) -> Iterator[SourceRecord]:
    """Rows of a ``.csv``, ``.tsv`` or ``.parquet``; of any other file the objects of its JSON list or JSON Lines."""
    if file.suffix == PARQUET:
        return parquet_rows(file)
    return csv_rows(file) if file.suffix in TABLES else json_rows(file)


def _checked_header(file: DataFile, line: int, names: list[str], required: Sequence[str]) -> list[str]:
    for name in required:
        if name not in names:
            raise UserError(f"{at(file.name, line)}: no column '{name}' in the header; {did_you_mean(name, names)}")
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice:
        raise UserError(f"{at(file.name, line)}: column '{twice}' is twice in the header")
    return names


_ENDS = {tokenize.STRING, tokenize.NUMBER, tokenize.NAME}


def python_list(row: SourceRecord, key: str) -> list[Any]:
    """The list in the cell ``key``. Raises :class:`kbtrain.errors.UserError` with file, line and field."""
    value = cell_value(row.text(key))
    if not isinstance(value, list):
        raise row.error(key, f"expected a list like ['a', 'b'], found {format_value(row.text(key))}")
    return value


def cell_value(value: Any) -> Any:
    """The list or object in a cell, as JSON, Python or numpy prints it; any other value itself."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(value)
    with contextlib.suppress(ValueError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError):
        return ast.literal_eval(_with_commas(value))
    return value


def _with_commas(text: str) -> str:
    text = re.sub(r"\barray\((\[.*?\]), dtype=\w+\)", r"\1", text, flags=re.DOTALL)
    parts: list[str] = []
    after_value = False
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}:
            continue
        begins = token.type in _ENDS or token.string in "[{("
        parts += [",", token.string] if after_value and begins else [token.string]
        after_value = token.type in _ENDS or token.string in "]})"
    return " ".join(parts)


_SPACES = re.compile(r"[ \t\r\n]*")
_TOKEN = 16  # characters; an error so near the end may be a token that continues in the next chunk
MAX_RECORD = 1 << 28  # characters


def json_rows(file: DataFile) -> Iterator[SourceRecord]:
    """The objects of a list (``[{...}, ...]``) or of JSON Lines. Raises :class:`UserError` with the line."""
    cursor = Cursor(file)
    if cursor.peek() == "[":
        yield from _items(cursor, file)
        cursor.end()
    else:
        yield from jsonl_rows(file)


def jsonl_rows(file: DataFile) -> Iterator[SourceRecord]:
    """One object a line; blank lines are skipped."""
    for number, line in text_lines(file):
        if line.strip():
            yield _row(file, number, jsonl.value(line, file.name, number, foreign=True))


def rows_under(file: DataFile, key: str) -> Iterator[SourceRecord]:
    """The objects of the list under ``key`` of a JSON object; other keys are skipped."""
    cursor = Cursor(file)
    has_key = False
    for name in cursor.entries():
        if name != key:
            cursor.value()
            continue
        if cursor.peek() != "[":
            raise cursor.error(f"expected a list under '{key}'")
        has_key = True
        yield from _items(cursor, file, key)
    if not has_key:
        raise UserError(f"{at(file.name, 1, key)}: missing")
    cursor.end()


def first_key(file: DataFile) -> str | None:
    """First key of the JSON object that a file begins with; None where it begins with anything else."""
    cursor = Cursor(file)
    return next(cursor.entries(), None) if cursor.peek() == "{" else None


def rows_by_key(file: DataFile) -> Iterator[tuple[str, SourceRecord]]:
    """(key, object) of a JSON object of objects; of a list: ("", object)."""
    cursor = Cursor(file)
    if cursor.peek() == "[":
        for row in _items(cursor, file):
            yield "", row
    else:
        for name in cursor.entries():
            cursor.peek()
            yield name, _row(file, cursor.line, cursor.value())
    cursor.end()


def _items(cursor: Cursor, file: DataFile, key: str = "") -> Iterator[SourceRecord]:
    """Their fields are named with the place in the list: a file may be all on one line."""
    for number, (line, value) in enumerate(cursor.items()):
        yield _row(file, line, value, f"{key}[{number}].")


def _row(file: DataFile, line: int, value: Any, path: str = "") -> SourceRecord:
    if not isinstance(value, dict):
        place = at(file.name, line, path.removesuffix(".") or None)
        raise UserError(f"{place}: expected a JSON object, found {type(value).__name__}")
    return SourceRecord(value, file.name, line, path)


class Cursor:
    """A place in the text of a JSON document of which only the current part is in memory."""

    def __init__(self, file: DataFile) -> None:
        self.line = 1
        self._file = file
        self._chunks = chunks_of(file.raw, file.name)
        self._text = ""
        self._at = 0

    def peek(self) -> str:
        """The next character that is not white space; "" at the end of the file."""
        while True:
            self._advance(_SPACES.match(self._text, self._at).end())  # type: ignore[union-attr]  # it matches nothing, too
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def value(self) -> Any:
        """The next JSON value, whole."""
        self.peek()
        while True:
            try:
                value, end = FOREIGN.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - _TOKEN
                if cut and self._more():
                    continue
                self._advance(min(error.pos, len(self._text)))
                raise self.error(error.msg) from None
            except BadField as error:  # a key twice, or no finite number
                raise self.error(f"field {error.field!r}: {error}") from None
            except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
                raise self.error("nested too deeply" if isinstance(error, RecursionError) else str(error)) from None
            if end < len(self._text) or not self._more():  # at the end of a chunk a number may continue
                self._advance(end)
                return value

    def items(self) -> Iterator[tuple[int, Any]]:
        """(line, value) of the list that begins here."""
        sign = self._take("[")
        if self.peek() == "]":
            sign = self._take("]")
        while sign != "]":
            self.peek()
            yield self.line, self.value()
            sign = self._take(",]")

    def entries(self) -> Iterator[str]:
        """The keys of the object that begins here; the caller takes each one's value."""
        sign = self._take("{")
        if self.peek() == "}":
            sign = self._take("}")
        while sign != "}":
            if self.peek() != '"':
                raise self.error("expected a key in double quotes")
            name = str(self.value())
            self._take(":")
            yield name
            sign = self._take(",}")

    def end(self) -> None:
        """Nothing but white space may follow."""
        if self.peek():
            raise self.error("something follows after the end of the JSON document")

    def error(self, reason: str) -> UserError:
        reason = reason if self._at < len(self._text) else f"the file ends too early: {reason}"
        return UserError(f"{at(self._file.name, self.line)}: broken JSON ({reason})")

    def _take(self, valid: str) -> str:
        char = self.peek()
        if not char or char not in valid:
            raise self.error(f"expected {' or '.join(repr(c) for c in valid)}" + (f", found {char!r}" if char else ""))
        self._advance(self._at + 1)
        return char

    def _advance(self, place: int) -> None:
        self.line += self._text.count("\n", self._at, place)
        self._at = place

    def _more(self) -> bool:
        """Read on, at least as much as is held already: then a long value is not tried over and over."""
        parts, shortfall = [self._text[self._at :]], len(self._text) - self._at
        while shortfall >= 0 and (chunk := next(self._chunks, "")):
            parts.append(chunk)
            shortfall -= len(chunk)
        if len(parts) == 1:
            return False
        self._text, self._at = "".join(parts), 0
        if len(self._text) > MAX_RECORD:
            raise self.error(f"a record of more than {MAX_RECORD >> 20} million characters")
        return True
