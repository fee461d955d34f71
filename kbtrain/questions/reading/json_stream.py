"""JSON files of any size, one record at a time: a list, a list under a key, an object of objects, or JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.files import FOREIGN, BadField
from kbtrain.questions.reading.files import DataFile, text_chunks, text_lines
from kbtrain.questions.reading.rows import SourceRecord

_SPACE = " \t\r\n"
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


def begins_list(file: DataFile) -> bool:
    """True for a file that begins with a JSON list."""
    return Cursor(file).peek() == "["


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
            line = cursor.line
            yield name, _row(file, line, cursor.value())
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
        self._chunks = text_chunks(file)
        self._text = ""
        self._at = 0

    def peek(self) -> str:
        """The next character that is not white space; "" at the end of the file."""
        while True:
            end = self._at
            while end < len(self._text) and self._text[end] in _SPACE:
                end += 1
            self._advance(end)
            if end < len(self._text):
                return self._text[end]
            if not self._more():
                return ""

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
            except RecursionError:
                raise self.error("nested too deeply") from None
            except BadField as error:  # a key twice, or no finite number
                raise self.error(f"field {error.field!r}: {error}") from None
            except ValueError as error:  # a number of thousands of digits
                raise self.error(str(error)) from None
            if end < len(self._text) or not self._more():  # at the end of a chunk a number may continue
                self._advance(end)
                return value

    def items(self) -> Iterator[tuple[int, Any]]:
        """(line, value) of the list that begins here."""
        self._take("[")
        if self.peek() == "]":
            self._take("]")
            return
        while True:
            self.peek()
            line = self.line
            yield line, self.value()
            if self._take(",]") == "]":
                return

    def entries(self) -> Iterator[str]:
        """The keys of the object that begins here; the caller takes each one's value."""
        self._take("{")
        if self.peek() == "}":
            self._take("}")
            return
        while True:
            if self.peek() != '"':
                raise self.error("expected a key in double quotes")
            name = str(self.value())
            self._take(":")
            yield name
            if self._take(",}") == "}":
                return

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
