"""The decision log: one JSON object a line, written by a thread of its own, rotated by size.

The system gets each line whole, so that a kill leaves no part of one. A full disk may take a part of a line: the file
is then cut back to the line before, and the decision is counted as lost.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError, at
from kbtrain.gate.trained_on import question_hash
from kbtrain.io.files import beside, cut_torn_line, path_exists, put_in_place

KEPT = 5  # older files
ROOM = 10_000  # lines that may wait for the disk
logger = logging.getLogger("kbtrain.serve")


class DecisionLog:
    """Appends to ``path``; ``path.1`` is the newest of at most ``keep`` older files.

    ``on_loss`` is called once for each decision that the disk did not take. Raises :class:`UserError` for a file that
    cannot be written.
    """

    def __init__(self, path: Path, max_mb: float, keep: int = KEPT, on_loss: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self._on_loss = on_loss
        self._lost = 0  # since the last line that was written
        self._limit, self._keep = int(max_mb * 2**20), keep
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path_exists(path):
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
        about = {} if question is None else {"question_hash": question_hash(question)}
        if with_text and question is not None:
            about["question"] = question
        try:
            self._waiting.put_nowait(json.dumps({**row, **about}).encode() + b"\n")
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """Write the waiting lines, then end the thread."""
        self._waiting.put(None)
        self._thread.join()
        os.close(self._file)

    def _run(self) -> None:
        while (line := self._waiting.get()) is not None:
            try:
                self._append(line)
            except (OSError, UserError) as error:
                self._on_loss()
                self._lost += 1
                if self._lost == 1:  # a disk that stays full would fill the other log, too
                    reason = error.strerror if isinstance(error, OSError) else error
                    logger.error("%s: a decision is lost, and those that follow until it can be written (%s)",
                                 self.path, reason)  # fmt: skip
                continue
            if self._lost:
                logger.warning("%s: written again; %d decisions are lost", self.path, self._lost)
                self._lost = 0

    def _append(self, line: bytes) -> None:
        """Write a line, or nothing of it. Raises ``OSError``, and :class:`UserError` for an older file in the way."""
        if os.fstat(self._file).st_size + len(line) > self._limit:
            self._rotate()
        size = os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) == len(line):
                return
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with suppress(OSError):  # a device has no length
                os.ftruncate(self._file, size)
            raise

    def _rotate(self) -> None:
        numbered = [beside(self.path, f".{i}") for i in range(1, self._keep + 1)]
        for older, newer in zip(reversed(numbered), [*reversed(numbered[:-1]), self.path], strict=True):
            if newer.exists():
                put_in_place(newer, older)
        full, self._file = self._file, self._open()
        os.close(full)
