"""Passages from a file, streamed: our own JSON Lines, any other with ``id``, ``title``, ``text``, or DPR's TSV; gz too.

DPR's ``psgs_w100.tsv`` (21 million passages of 100 words) has the columns id, text, title.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.records import Passage

FIELDS = ("id", "title", "text")
_LONGEST_FIELD = 2**30  # csv refuses fields above 128 KiB by default


def read_passages(path: Path | str) -> Iterator[Passage]:
    """Stream a corpus: ``.jsonl`` or ``.tsv``, plain or ``.gz``. Other fields (source, language ...) are not read.

    Raises :class:`UserError` with file, line and field.
    """
    name = str(path).removesuffix(".gz")
    if name.endswith(".jsonl"):
        return (_parsed(line, path, number) for number, line in _lines(path) if line.strip())
    if name.endswith(".tsv"):
        return _tsv(path)
    raise UserError(f"{at(path)}: cannot read passages from it; name a .jsonl or .tsv file, plain or .gz")


def _lines(path: Path | str) -> Iterator[tuple[int, str]]:
    """Numbered lines of a text file; a byte order mark is dropped."""
    number = 0
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, 1):
                yield number, line
    except FileNotFoundError:
        raise UserError(f"{at(path)}: no such file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{at(path, number + 1)}: not UTF-8 text (byte {error.start} of what follows)") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{at(path, number + 1)}: broken gzip file ({error}); fetch it again") from None


def _opened(path: Path | str) -> IO[str]:
    if str(path).endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


def _parsed(line: str, path: Path | str, number: int) -> Passage:
    try:
        data = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{at(path, number)}: broken JSON ({getattr(error, 'msg', 'nested too deep')})") from None
    if not isinstance(data, dict):
        raise UserError(f"{at(path, number)}: expected a JSON object, found {type(data).__name__}")
    return Passage(*(_text(data, field, path, number) for field in FIELDS))


def _text(data: dict[str, Any], field: str, path: Path | str, number: int) -> str:
    value = data.get(field)
    if isinstance(value, str) and (value.strip() or field == "title"):
        return value
    if field == "id" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if field not in data:
        others = [key for key in data if key not in FIELDS]
        hint = f"; {did_you_mean(field, others)}" if others else ""
        raise UserError(f"{at(path, number)}: field '{field}': missing{hint}")
    what = "empty" if isinstance(value, str) else f"expected text, found {value!r:.40}"
    raise UserError(f"{at(path, number, field)}: {what}")


def _tsv(path: Path | str) -> Iterator[Passage]:
    """Rows as csv writes them (quotes doubled inside quotes), under a line with the names of the columns."""
    csv.field_size_limit(_LONGEST_FIELD)
    rows = csv.reader((line for _, line in _lines(path)), delimiter="\t", strict=True)
    try:
        head = next(rows, [])
        if sorted(head) != sorted(FIELDS):
            found = " ".join(head)[:60] or "nothing"
            raise UserError(f"{at(path, 1)}: expected the columns id, text, title in the first line, found {found!r}")
        for row in rows:
            if not row:
                continue
            if len(row) != len(head):
                raise UserError(f"{at(path, rows.line_num)}: {len(row)} columns, expected {len(head)}")
            data = dict(zip(head, row, strict=True))
            yield Passage(*(_text(data, field, path, rows.line_num) for field in FIELDS))
    except csv.Error as error:
        raise UserError(f"{at(path, rows.line_num)}: broken TSV ({error})") from None
