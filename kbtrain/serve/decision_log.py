"""What the server records: figures for Prometheus, and the decision log, one JSON object a line, written by a thread of
its own and rotated by size. Labels of figures take few values each, and never a client's text.

The system gets each line whole, so that a kill leaves no part of one. A full disk may take a part of a line: the file
is then cut back to the line before, and the decision is counted as lost.
"""

from __future__ import annotations

import errno
import functools
import json
import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kbtrain.errors import UserError, at
from kbtrain.gate.gate import Unit
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
                    logger.error("%s: this decision and the next ones are lost until the log can be written (%s)",
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


SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
SHARES = tuple(i / 20 for i in range(1, 20))
BEYOND = (1, 1.5, 2, 3, 5, 7, 10, 20, 50, 100)
SCORES = (*(-edge for edge in reversed(BEYOND)), -0.5, -0.2, 0, *SHARES, *BEYOND)  # of log odds, entropies, ridge


class Metrics:
    """All metrics of one server, in their own registry.

    ``unit``: of the first gate's scores; a histogram's buckets cannot change after a reload.
    """

    def __init__(self, unit: Unit | None = None) -> None:
        self.registry = CollectorRegistry()
        counter = functools.partial(Counter, registry=self.registry)
        gauge = functools.partial(Gauge, registry=self.registry)
        histogram = functools.partial(Histogram, registry=self.registry)
        self.requests = counter("kbtrain_requests", "Requests", ["route", "status"])
        self.decisions = counter("kbtrain_decisions", "Decisions", ["gate", "decision", "reason"])
        self.gate_seconds = histogram("kbtrain_gate_seconds", "Gate, waiting included", buckets=SECONDS)
        self.search_seconds = histogram("kbtrain_search_seconds", "Search", buckets=SECONDS)
        self.searches = counter("kbtrain_searches", "Searches", ["result"])
        self.follow_ups = counter("kbtrain_follow_ups", "Messages, by what they were gated by", ["context"])
        about = "Upstream until its first byte"
        self.first_token = histogram("kbtrain_upstream_first_token_seconds", about, buckets=(*SECONDS, 60, 120))
        self.upstream_failures = counter("kbtrain_upstream_failures", "Failures of the upstream", ["kind"])
        edges = SHARES if unit == "probability" else SCORES
        self.score = histogram("kbtrain_score", "Scores of the gate", buckets=edges)
        self.client_left = counter(
            "kbtrain_client_left", "Clients that disconnected, by what was in progress", ["moment"]
        )
        self.inflight = gauge("kbtrain_inflight", "Requests under way")
        self.queue_depth = gauge("kbtrain_queue_depth", "Questions that wait for the gate")
        self.spent = gauge("kbtrain_gate_spent", "Requests, samples and tokens of a gate that samples", ["what"])
        self.reloads = counter(
            "kbtrain_reloads", "Reloads of the gate's folder; after a failed one the old gate stays", ["result"]
        )
        about = "Decisions missing from the log: too many waited, or the disk was full"
        self.log_lost = counter("kbtrain_log_lost", about)

    def text(self) -> bytes:
        return generate_latest(self.registry)
