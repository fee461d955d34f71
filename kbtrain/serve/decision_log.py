"""The decision log: one JSON object a line, written by a thread of its own, rotated by size.

A line is handed to the system whole, so that a kill leaves no part of one; should the disk have torn the last line of
an earlier run, it is cut off when the file is opened.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import queue
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError, at
from kbtrain.files import beside, cut_torn_line, put_in_place, there
from kbtrain.jsonl import lines
from kbtrain.trained_on import question_hash

ROOM = 10_000  # lines that may wait for the disk
logger = logging.getLogger("kbtrain.serve")


class DecisionLog:
    """Appends to ``path``; ``path.1`` is the newest of at most ``keep`` older files.

    Raises :class:`UserError` for a file that cannot be written.
    """

    def __init__(self, path: Path, max_mb: float, keep: int) -> None:
        self.path = path
        self._limit, self._keep = int(max_mb * 2**20), keep
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if there(path):
                cut_torn_line(path)
            self._file = self._open()
        except OSError as error:
            raise UserError(f"{at(path)}: cannot be written ({error.strerror})") from None
        self._waiting: queue.Queue[bytes | None] = queue.Queue(ROOM)
        self._thread = threading.Thread(target=self._run, name="decision-log", daemon=True)
        self._thread.start()

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, row: Mapping[str, Any], question: str | None, with_text: bool) -> bool:
        """Queue one line: with the question's hash, and its text only ``with_text``. False if there was no room."""
        asked = {} if question is None else {"question_hash": question_hash(question)}
        if with_text and question is not None:
            asked["question"] = question
        try:
            self._waiting.put_nowait(json.dumps({**row, **asked}).encode() + b"\n")
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """Write what waits, then end the thread."""
        self._waiting.put(None)
        self._thread.join()
        os.close(self._file)

    def _run(self) -> None:
        while (line := self._waiting.get()) is not None:
            try:
                if os.fstat(self._file).st_size + len(line) > self._limit:
                    self._rotate()
                os.write(self._file, line)
            except OSError as error:
                logger.error("%s: a decision is lost (%s)", self.path, error.strerror)
            except UserError as error:  # of the log's older file
                logger.error("%s: a decision is lost (%s)", self.path, error)

    def _rotate(self) -> None:
        numbered = [beside(self.path, f".{i}") for i in range(1, self._keep + 1)]
        for older, newer in zip(reversed(numbered), [*reversed(numbered[:-1]), self.path], strict=True):
            if newer.exists():
                put_in_place(newer, older)
        os.close(self._file)
        self._file = self._open()


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a log and of its rotated files, the oldest first. Raises :class:`UserError` for a broken line."""
    rotated = (file for file in path.parent.glob(f"{glob.escape(path.name)}.*") if file.suffix[1:].isdecimal())
    older = sorted(rotated, key=lambda file: -int(file.suffix[1:]))
    for file in [*older, path]:
        for number, line in lines(file):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                raise UserError(f"{at(file, number)}: broken JSON; is it a log of kbtrain serve?") from None
            if not isinstance(row, dict):
                raise UserError(f"{at(file, number)}: no decision of kbtrain serve")
            for field in ("score", "time"):
                if not isinstance(row.get(field), int | float | None):
                    raise UserError(f"{at(file, number, field)}: expected a number, found {row[field]!r:.40}")
            yield row
