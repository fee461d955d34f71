"""The gate's own threads: questions that wait are scored in one batch, and the event loop runs meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kbtrain.records import Example
from kbtrain.runtime.cores import leave_a_core
from kbtrain.serve.problem import Busy

R = TypeVar("R")
Input = str | Example
LINGER = 5.0  # seconds that a batch under way may take at the end: a gate may wait for a server that is down
ScoreBatch = Callable[[Sequence[Input]], Sequence[R]]


@dataclass
class _Waiting(Generic[R]):
    value: Input
    answer: asyncio.Future[R]


class GateWorker(Generic[R]):
    """Batches of at most ``most`` inputs; the first of a batch waits ``seconds`` for others at the longest.

    With several ``threads`` a batch does not wait for those before it: for a gate that waits for a server. A batch is
    smaller where it would take over half of ``deadline`` seconds at the speed of the batch before.

    ``score`` runs in the worker's thread. Where it fails for a batch, each input is tried alone: one bad input does not
    fail other requests. Inputs of cancelled requests are skipped.
    """

    def __init__(
        self,
        score: ScoreBatch[R],
        most: int,
        seconds: float,
        room: int,
        deadline: float = math.inf,
        threads: int = 1,
    ) -> None:
        self._score, self._deadline = score, deadline
        self._each = 0.0  # seconds of an input of the last batch
        self._most, self._seconds, self._room = most, seconds, room
        self._waiting: deque[_Waiting[R]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.batches = 0
        self._threads = [threading.Thread(target=self._run, name="gate", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        """True while all threads take questions."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def depth(self) -> int:
        """Number of inputs that wait."""
        return len(self._waiting)

    async def score(self, inputs: Sequence[Input]) -> list[R]:
        """One result an input, in order; at the deadline those before the first input without one.

        Raises :class:`Busy` without room for all of them, and ``TimeoutError`` where none is scored at the deadline.
        """
        loop = asyncio.get_running_loop()
        items = [_Waiting(value, loop.create_future()) for value in inputs]
        with self._changed:
            if self._closed or len(self._waiting) + len(items) > self._room:
                raise Busy(f"{len(self._waiting)} questions wait for the gate")
            self._waiting.extend(items)
            self._changed.notify()
        try:
            within = None if self._deadline == math.inf else self._deadline
            answers = [item.answer for item in items]
            done, _ = await asyncio.wait(answers, timeout=within, return_when=asyncio.FIRST_EXCEPTION)
            for answer in done:
                answer.result()  # raises the error of any input
            # several threads may end their batches in another order
            results = [answer.result() for answer in itertools.takewhile(asyncio.Future.done, answers)]
            if not results:
                raise TimeoutError
            return results
        finally:
            for item in items:
                if not item.answer.cancel() and not item.answer.cancelled():
                    item.answer.exception()  # marks it as retrieved: another item's error is raised

    def close(self) -> None:
        """End the threads after their batches, or leave them running; inputs that still wait get :class:`Busy`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        end = time.monotonic() + LINGER
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self) -> None:
        while True:
            batch = self._next_batch()
            if not batch:
                return
            self.batches += 1
            began = time.monotonic()
            results = self._results([item.value for item in batch])
            self._each = (time.monotonic() - began) / len(batch)
            _deliver(batch, results)

    def _next_batch(self) -> list[_Waiting[R]]:
        """The next inputs; empty at the end."""
        with self._changed:
            while True:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                until = time.monotonic() + self._seconds
                most = max(1, int(min(self._most, self._deadline / 2 / (self._each or 1e-9))))
                while len(self._waiting) < most and not self._closed:
                    left = until - time.monotonic()
                    if left <= 0 or not self._changed.wait(left):
                        break
                if self._closed:
                    left_over = [self._waiting.popleft() for _ in range(len(self._waiting))]
                    _deliver(left_over, [Busy("the server is stopping")] * len(left_over))
                    return []
                items = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
                batch = [item for item in items if not item.answer.cancelled()]
                if batch:
                    return batch

    def _results(self, values: Sequence[Input]) -> list[R | Exception]:
        try:
            leave_a_core(len(values))
            results = list(self._score(values))
            if len(results) != len(values):
                raise ValueError(f"{len(results)} scores for {len(values)} inputs")
            return list(results)
        except BaseException as error:  # noqa: BLE001 - an error is the batch's result, not the thread's end
            if len(values) == 1:
                return [as_exception(error)]
        return [result for value in values for result in self._results([value])]


def as_exception(error: BaseException) -> Exception:
    """An error that a future can hold and the event loop survives.

    A panic in a library written in Rust is a ``BaseException``; ``StopIteration`` cannot be set on a future.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(type(error).__name__)


def _deliver(batch: Sequence[_Waiting[R]], results: Sequence[R | Exception]) -> None:
    """Hand over all results at once: waking the loop costs a system call."""
    pairs = list(zip(batch, results, strict=True))

    def set_all() -> None:
        for item, result in pairs:
            if item.answer.done():
                continue
            if isinstance(result, Exception):
                item.answer.set_exception(result)
            else:
                item.answer.set_result(result)

    if pairs:
        loop = pairs[0][0].answer.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(set_all)
