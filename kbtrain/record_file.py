"""A file of one record a question that a killed run goes on with, and that appears under its name when it is whole.

Passages found, a judge's verdicts: what costs time or money to make again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kbtrain import jsonl
from kbtrain.files import beside, errors_of, put_in_place
from kbtrain.provenance import meta_of, unchanged, write_atomically
from kbtrain.text_files import read_text


def is_made(path: Path, key: Mapping[str, Any]) -> bool:
    """True if the file is whole and unchanged, and its meta data note this ``key``."""
    return path.exists() and meta_of(path).get("key") == key and unchanged(path)


def begun_files(path: Path) -> tuple[Path, Path]:
    """Files that an interrupted :class:`RecordFile` leaves: the records so far, and their ``key``."""
    return beside(path, ".partial"), beside(path, ".partial.key")


class RecordFile:
    """Appends to ``<path>.partial``; a context manager.

    ``key`` is what the records depend on (options, hashes of inputs). An unfinished file with the same key is gone
    on with after its last whole line, one with another key is begun anew. ``n`` counts the records that stand in it.
    """

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        self.path = path
        self.n = 0
        self._partial, self._key_file = begun_files(path)
        self._key = json.dumps(dict(key), sort_keys=True)

    def __enter__(self) -> Self:
        same = self._key_file.exists() and read_text(self._key_file) == self._key
        if not same:
            self._partial.unlink(missing_ok=True)
            write_atomically(self._key_file, self._key)
        self._file = open(self._partial, "a+b")  # closed in __exit__
        self._file.truncate(self._whole_lines())
        return self

    def _whole_lines(self) -> int:
        """Bytes up to the last newline; counts the lines on the way."""
        self._file.seek(0)
        size = 0
        for line in self._file:
            if line.endswith(b"\n"):
                size += len(line)
                self.n += 1
        return size

    def add(self, record: Any) -> None:
        with errors_of(self.path):
            self._file.write(jsonl.dump(record).encode() + b"\n")
        self.n += 1

    def flush(self) -> None:
        """Write what was added to disk, so that it survives a kill."""
        with errors_of(self.path):
            self._file.flush()

    def finish(self) -> None:
        """Give the whole file its name."""
        with errors_of(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            put_in_place(self._partial, self.path)
            self._key_file.unlink()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with errors_of(self.path):  # what is still held is written here, or refused
            self._file.close()
