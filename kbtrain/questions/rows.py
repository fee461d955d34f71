"""A native record read field by field: a missing field or a wrong type is an error with file, line and field."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml

from kbtrain.answers.writing import is_blank
from kbtrain.errors import UserError, at
from kbtrain.records import Language

Word = TypeVar("Word", bound=str)


@dataclass(frozen=True)
class SourceRecord:
    """A native record: ``data`` from line ``line`` of ``file``; ``path`` leads to it in a nested one ("qas[2].").

    ``columns`` are the fields' names in the file where they have others here.
    """

    data: dict[str, Any]
    file: str
    line: int
    path: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)

    def error(self, key: str, reason: str) -> UserError:
        field, bracket, index = key.partition("[")
        name = self.path + self.columns.get(field, field) + bracket + index
        return UserError(f"{at(self.file, self.line, name)}: {reason}")

    def having(self, data: dict[str, Any]) -> SourceRecord:
        """Other values in the same place."""
        return SourceRecord(data, self.file, self.line, self.path, self.columns)

    def wrong(self, key: str, expected: str) -> UserError:
        """The field is missing or of another type than expected."""
        if key not in self.data:
            return self.error(key, "missing")
        value = self.data[key]
        actual = "null" if value is None else f"{type(value).__name__} {format_value(value)}"
        return self.error(key, f"expected {expected}, found {actual}")

    def has(self, key: str) -> bool:
        """True if the field is there and not null."""
        return self.data.get(key) is not None

    def text(self, key: str) -> str:
        """Text with a visible character, without white space at its ends."""
        value = self.data.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "text")
        if is_blank(value):
            raise self.error(key, "empty")
        return self.check_text(key, value.strip())

    def text_or_empty(self, key: str) -> str:
        """As :meth:`text`, "" where the field is missing, null or blank."""
        value = self.data.get(key)
        if value is None or (isinstance(value, str) and is_blank(value)):
            return ""
        return self.text(key)

    def check_text(self, key: str, value: str) -> str:
        """Refuses what no text of a data set has: characters that cannot be written, or zero bytes."""
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise self.error(key, "half of a surrogate pair (broken \\u escape)") from None
        if "\0" in value:
            raise self.error(key, "a zero byte; is the file UTF-16?")
        return value

    def identifier(self, key: str) -> str:
        """Text or a whole number, as text; tables with gaps hold 7 as 7.0."""
        value = self.data.get(key)
        if type(value) is int or (isinstance(value, float) and value.is_integer()):
            return str(int(value))
        return self.text(key)

    def texts(self, key: str, repeats: bool = False) -> tuple[str, ...]:
        """A list of at least one text, none of them blank; without ``repeats`` each is kept once."""
        if not (values := self.values(key)):
            raise self.error(key, "empty list")
        inner = self.having({f"{key}[{i}]": value for i, value in enumerate(values)})
        texts = tuple(inner.text(name) for name in inner.data)
        return texts if repeats else unique(texts)

    def gold_answers(self, key: str) -> tuple[str, ...]:
        """A list of texts, each kept once; null is an empty list, and within one an empty text.

        It may be empty, and so may its texts: :mod:`kbtrain.questions.gold` leaves these out and counts them.
        """
        if key in self.data and self.data[key] is None:
            return ()
        inner = self.having({f"{key}[{i}]": value for i, value in enumerate(self.values(key))})
        return unique(inner.text_or_empty(name) for name in inner.data)

    def gold_answer(self, key: str) -> str:
        """One text; null and a blank one are empty."""
        if key not in self.data:
            raise self.wrong(key, "text")
        return self.text_or_empty(key)

    def values(self, key: str) -> list[Any]:
        """A list, also as a dictionary of lists or as JSON text."""
        value = as_rows(self.data.get(key))
        if not isinstance(value, list):
            raise self.wrong(key, "a list")
        return value

    def rows(self, key: str) -> tuple[SourceRecord, ...]:
        """A list of objects."""
        return tuple(self._inner(f"{key}[{i}]", value) for i, value in enumerate(self.values(key)))

    def row(self, key: str) -> SourceRecord:
        if key not in self.data:
            raise self.error(key, "missing")
        return self._inner(key, self.data[key])

    def _inner(self, key: str, value: Any) -> SourceRecord:
        if not isinstance(value, dict):
            raise self.error(key, f"expected an object, found {type(value).__name__} {format_value(value)}")
        return SourceRecord(value, self.file, self.line, f"{self.path}{self.columns.get(key, key)}.")

    def number(self, key: str) -> float:
        """A finite number, or text that is one."""
        value = self.data.get(key)
        with contextlib.suppress(ValueError, OverflowError, TypeError):
            if not isinstance(value, bool) and math.isfinite(number := float(value)):  # type: ignore[arg-type]
                return number
        raise self.wrong(key, "a number")

    def flag(self, key: str) -> bool:
        """True or false, as JSON, as 1 and 0, as yes and no, or as a table's TRUE and FALSE."""
        value = self.data.get(key)
        text = str(value).strip().lower() if isinstance(value, str | int | float) else ""
        if text not in _FLAGS:
            raise self.wrong(key, "true, false, 1 or 0")
        return _FLAGS[text]

    def one_of(self, key: str, valid: Iterable[Word]) -> Word:
        value, names = self.text(key), {str(name): name for name in valid}
        if value not in names:
            raise self.error(key, f"expected {' or '.join(names)}, found {format_value(value)}")
        return names[value]


_FLAGS = {"true": True, "yes": True, "1": True, "1.0": True, "false": False, "no": False, "0": False, "0.0": False}


def as_rows(value: Any) -> Any:
    """A dictionary of lists of one length as the list of its rows, and the list in a JSON text; else the value itself.

    Hugging Face's ``datasets`` keeps a list of objects as one object of lists.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    columns = list(value.values()) if isinstance(value, dict) else []
    if columns and all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns):
        return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
    return value


def format_value(value: Any, most: int = 60) -> str:
    """A value in a message: on one line, and short; a text that is cut ends with its quote."""
    text = repr(value[:most] if isinstance(value, str | list) else value)
    end = text[0] if isinstance(value, str) else ""
    return text if len(text) <= most else f"{text[: most - 2]}\u2026{end}"


def plain(value: Any) -> Any:
    """Numbers as texts, all their digits and no fraction of zero (1984.0 is the answer 1984); any other value stays as
    it is, and is refused later where it is not text."""
    return repr(value).removesuffix(".0") if type(value) in (int, float) else value


def plain_answer(value: Any, language: Language = "en") -> Any:
    """As :func:`plain`, with true and false as yes and no."""
    yes_no = ("否", "是") if language == "zh" else ("no", "yes")
    return yes_no[value] if isinstance(value, bool) else plain(value)


def without_header(row: SourceRecord) -> bool:
    """True for a table whose columns have numbers, sentences or lists as names: its first line is a row, too."""
    names = list(row.data) if row.line == 2 and not row.path else []
    return any(
        name.isdecimal() or name.endswith("?") or name[:1] + name[-1:] == "[]" or len(name.split()) > 6
        for name in names
    )


def unique(values: Iterable[str]) -> tuple[str, ...]:
    """The values without repeats, in their order."""
    return tuple(dict.fromkeys(values))


def typed_map(columns: Mapping[str, str]) -> str:
    """A map of columns as it is typed for ``--columns``, in YAML."""
    as_typed: Any = {"default_flow_style": True, "allow_unicode": True, "sort_keys": False, "width": sys.maxsize}
    return str(yaml.safe_dump(dict(columns), **as_typed)).strip()
