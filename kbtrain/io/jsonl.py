"""Records in and out of JSON Lines: streaming, checked field by field, each error with file, line and field."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.io.files import BadField, errors_of, loads, path_exists, replacing
from kbtrain.io.text_files import lines_of, opener_of, read_text

K = TypeVar("K")
R = TypeVar("R")


class _Layout(NamedTuple):
    """A kind of record: its fields, those with a default, and those that are not written if they have it."""

    names: tuple[str, ...]
    optional: frozenset[str]
    left_out: tuple[tuple[str, Any], ...]


_adapter = functools.cache(TypeAdapter)


@functools.cache
def _layout(kind: Any) -> _Layout:
    fields, missing = dataclasses.fields(kind), dataclasses.MISSING
    optional = frozenset(f.name for f in fields if f.default is not missing or f.default_factory is not missing)
    left_out = tuple((f.name, f.default) for f in fields if f.metadata.get("omit_default"))
    return _Layout(tuple(f.name for f in fields), optional, left_out)


def dump(record: Any) -> str:
    """One JSON line, keys in field order, without fields of ``omit_default`` metadata that have their default."""
    data = _fields(record)
    for name, default in _layout(cast(Any, type(record))).left_out:
        if data[name] == default:
            del data[name]
    return _ENCODER.encode(data)


def _fields(record: Any) -> dict[str, Any]:
    """A record's fields as they are: what :func:`dataclasses.asdict` copies in depth is encoded all the same."""
    return {name: getattr(record, name) for name in _layout(cast(Any, type(record))).names}


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=_fields)


def record(kind: type[R], data: Any, path: Path | str, number: int) -> R:
    """A record from a JSON value: a field that is null counts as missing where the record has a default for it.

    Raises :class:`UserError` naming file, line and field.
    """
    layout = _layout(cast(Any, kind))
    if not isinstance(data, dict):
        raise UserError(f"{at(path, number)}: expected a JSON object, found {type(data).__name__}")
    if None in data.values():
        data = {key: value for key, value in data.items() if value is not None or key not in layout.optional}
    for key in data:
        if key not in layout.names:
            raise UserError(f"{at(path, number, key)}: unknown field; {did_you_mean(key, layout.names)}")
    return parsed(kind, data, at(path, number))


def parsed(kind: type[R], data: Any, place: str, remedy: str = "") -> R:
    """A value of this type. Raises :class:`UserError`, with ``place`` before the problem and ``remedy`` behind it."""
    try:
        return cast(R, _adapter(cast(Any, kind)).validate_python(data))
    except ValidationError as error:
        raise UserError(f"{place}: {one_line(error)}{remedy}") from None


def value(line: str, path: Path | str, number: int, foreign: bool = False) -> Any:
    """The JSON of one line, by :func:`kbtrain.io.files.loads`. Raises :class:`UserError` with file and line."""
    try:
        return loads(line, foreign)
    except ValueError as error:
        raise _refusal(error, path, number) from None


def _refusal(error: ValueError, path: Path | str, number: int | None, remedy: str = "") -> UserError:
    """What :func:`kbtrain.io.files.loads` refused, with file, line and field."""
    if isinstance(error, BadField):
        return UserError(f"{at(path, number, error.field)}: {error}{remedy}")
    words = str(error)[:80]  # a number of thousands of digits, thousands of brackets
    if isinstance(error, json.JSONDecodeError):
        column = error.colno if number is None else error.pos + 1  # a line's own end begins no second one
        number, words = number or error.lineno, f"{error.msg} at column {column}"
    return UserError(f"{at(path, number)}: broken JSON ({words}){remedy}")


def read_value(path: Path | str, if_missing: str = "", if_broken: str = "") -> Any:
    """The content of a JSON file. Raises :class:`UserError` if it is missing or broken, ending in the remedy given."""
    if if_missing and not path_exists(path):
        raise UserError(f"{at(path)}: no such file; {if_missing}")
    try:
        return loads(read_text(path))
    except ValueError as error:
        raise _refusal(error, path, None, f"; {if_broken}" if if_broken else "") from None


def read_json(path: Path | str) -> dict[str, Any]:
    """The object of a JSON file. Raises :class:`UserError` if it is missing, broken or no object."""
    data = read_value(path)
    if not isinstance(data, dict):
        raise UserError(f"{at(path)}: expected a JSON object, found {type(data).__name__}")
    return data


def read_model(path: Path | str, model: type[R]) -> R:
    """A JSON file as a pydantic model. Raises :class:`UserError` naming file and field."""
    return parsed(model, read_json(path), at(path))


def one_line(error: ValidationError) -> str:
    """The first problem of a pydantic error as ``field 'a.b': what (found value)``."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"field '{field}': missing"
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"field '{field}': {message}, found {first['input']!r:.60}"


def read(kind: type[R], path: Path | str) -> Iterator[R]:
    """Stream the records of a file, one at a time; blank lines are skipped."""
    return (record for _, record in read_numbered(kind, path))


def read_numbered(kind: type[R], path: Path | str) -> Iterator[tuple[int, R]]:
    """As :func:`read`, each record with the number of its line (from 1)."""
    return ((number, record(kind, value(line, path, number), path, number)) for number, line in lines(path))


def lines(path: Path | str) -> Iterator[tuple[int, str]]:
    """Stream (number from 1, text) of a file's lines that are not blank, without a BOM. Raises :class:`UserError`."""
    return ((number, line) for number, line in lines_of(opener_of(path), path) if line.strip())


def write(path: Path | str, records: Iterable[Any]) -> int:
    """Write a whole file, or none; returns how many records it holds. Raises :class:`UserError`."""
    return write_each({None: path}, ((None, record) for record in records))[None]


def write_each(paths: Mapping[K, Path | str], records: Iterable[tuple[K, Any]]) -> dict[K, int]:
    """As :func:`write`, several files in one pass over (key of the file, record): how many records each holds.

    What is refused names the file that was written, which the others' ends would name after themselves.
    """
    counts = dict.fromkeys(paths, 0)
    with contextlib.ExitStack() as stack:
        partials = {key: stack.enter_context(replacing(Path(path))) for key, path in paths.items()}
        files = {key: stack.enter_context(_open_partial(partials[key], path)) for key, path in paths.items()}
        for key, record in records:
            counts[key] += 1
            try:
                files[key].write(dump(record) + "\n")
            except OSError:
                with errors_of(paths[key]):
                    raise
    return counts


@contextlib.contextmanager
def _open_partial(partial: Path, target: Path | str) -> Iterator[TextIO]:
    """A file to be written, closed in the end: what is refused then is refused to ``target``."""
    file = open(partial, "w", encoding="utf-8")  # noqa: SIM115 - closed below, also after an error
    try:
        yield file
    finally:
        with errors_of(target):
            file.close()
