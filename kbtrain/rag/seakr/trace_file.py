"""Traces on disk, one a line: a killed run goes on at the next question, and no question stands there twice."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kbtrain import jsonl
from kbtrain.errors import UserError, at
from kbtrain.rag.seakr.trace import Trace


class TraceFile:
    """Appends traces; ``key`` (settings, hashes of inputs) stands beside them. A context manager.

    Raises :class:`UserError` if the file was begun with another key: its traces cost much and are not thrown away.
    """

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        self.path = path
        note = path.with_name(path.name + ".key")
        wanted = json.dumps(dict(key), sort_keys=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.read_bytes().rfind(b"\n") + 1 if path.exists() and note.exists() else 0
        if whole:
            _same(path, json.loads(note.read_text(encoding="utf-8")), json.loads(wanted))
            os.truncate(path, whole)  # what follows was being written when the process was killed
        else:
            path.write_text("", encoding="utf-8")
            note.write_text(wanted, encoding="utf-8")
        self.done = {trace.question_id for trace in jsonl.read(Trace, path)}
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed in close()

    def add(self, trace: Trace) -> None:
        """Durable when this returns. Raises ``ValueError`` for a question that is there already."""
        if trace.question_id in self.done:
            raise ValueError(f"question {trace.question_id!r} has a trace already")
        self._file.write(jsonl.dump(trace) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.done.add(trace.question_id)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise UserError(
                f"{at(path)}: begun with {name} = {json.dumps(before.get(name))[:60]}, now it is "
                f"{json.dumps(now.get(name))[:60]}; set it back, name another --name or delete the file"
            )
