"""An evidence file in the making: it goes on where an interrupted run stopped, and appears only when it is whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kbtrain import jsonl
from kbtrain.records import Evidence


class EvidenceFile:
    """Appends to ``<path>.partial``; a context manager.

    ``key`` is what the evidence depends on (options, hashes of inputs). An unfinished file with the same key is gone
    on with after its last whole line, one with another key is begun anew. ``n`` counts the records that stand in it.
    """

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        self.path = path
        self.n = 0
        self._partial = path.with_name(path.name + ".partial")
        self._key_file = path.with_name(path.name + ".partial.key")
        self._key = json.dumps(dict(key), sort_keys=True)

    def __enter__(self) -> Self:
        same = self._key_file.exists() and self._key_file.read_text(encoding="utf-8") == self._key
        if not same:
            self._partial.unlink(missing_ok=True)
            self._key_file.write_text(self._key, encoding="utf-8")
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

    def add(self, evidence: Evidence) -> None:
        self._file.write(jsonl.dump(evidence).encode() + b"\n")
        self.n += 1

    def flush(self) -> None:
        """What was added so far survives a kill from here on."""
        self._file.flush()

    def finish(self) -> None:
        """Give the whole file its name."""
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._partial, self.path)
        self._key_file.unlink()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()
