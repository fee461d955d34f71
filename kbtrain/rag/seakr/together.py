"""Variants of a pipeline at the same time: what all of them ask next shares the model's batches.

A variant alone leaves a GPU idle: its steps wait for each other, and few of its prompts are new. Each variant runs in a
thread of its own and waits with its prompts until all others do; the model thinks in the caller's thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kbtrain.errors import UserError
from kbtrain.rag.seakr.run import SeakrRun
from kbtrain.rag.seakr.self_aware import AnswerEngine, GenerationRequest
from kbtrain.rag.seakr.thoughts import Deciding, KeptThought, SharedThoughts
from kbtrain.rag.seakr.trace import Trace


def answer_together(runs: Sequence[SeakrRun], thoughts: SharedThoughts) -> Iterator[Trace]:
    """Answer what each run has not answered yet; every trace is on disk when it is yielded.

    ``thoughts`` are those of all runs. Raises what a run raises, once the others are done.
    """
    todo = [run for run in runs if run.n_left]
    asking, traces = _Asking(thoughts, len(todo)), deque[Trace]()

    def answer(run: SeakrRun) -> None:
        with asking.turn:
            try:
                traces.extend(run.answer(asking))
            finally:
                asking.leave()

    with ThreadPoolExecutor(max(1, len(todo))) as threads:
        answered = [threads.submit(answer, run) for run in todo]
        try:
            for _ in asking.rounds():
                while traces:
                    yield traces.popleft()
        except BaseException as error:  # interrupted, or closed: no thread may wait for ever
            asking.stop(error)
            raise
    yield from traces
    for run in answered:
        run.result()


@dataclass
class _Call:
    """One variant's prompts, and what came of them."""

    requests: Sequence[GenerationRequest]
    kept: list[KeptThought] | None = None
    error: BaseException | None = None


class _Asking:
    """Prompts of ``n`` variants. One of them runs at a time, whoever holds ``turn``, until it asks or leaves."""

    def __init__(self, shared: SharedThoughts, n: int) -> None:
        self.turn = threading.Condition()
        self._shared = shared
        self._working = n
        self._calls: list[_Call] = []
        self._stopped: BaseException | None = None

    def deciding(self, signal: str) -> AnswerEngine:
        return Deciding(self._think_once, signal)

    def _think_once(self, requests: Sequence[GenerationRequest]) -> list[KeptThought]:
        """As :meth:`SharedThoughts.think_once`, in a variant's thread; gives ``turn`` away until answers are there."""
        call = _Call(requests)
        self._calls.append(call)
        self.turn.notify_all()
        self.turn.wait_for(lambda: call.kept is not None or call.error or self._stopped)
        if call.kept is None:
            raise call.error or self._stopped or AssertionError
        return call.kept

    def leave(self) -> None:
        """A variant is done; it holds ``turn``."""
        self._working -= 1
        self.turn.notify_all()

    def stop(self, error: BaseException) -> None:
        """Wake all that wait, with this error."""
        with self.turn:
            self._stopped = error
            self.turn.notify_all()

    def rounds(self) -> Iterator[None]:
        """Answer, in this thread, whenever all variants at work wait; ends when all are done."""
        while True:
            with self.turn:
                self.turn.wait_for(lambda: len(self._calls) == self._working)
                if not self._working:
                    return
                calls, self._calls = self._calls, []
                self._answer(calls)
                self.turn.notify_all()
            yield

    def _answer(self, calls: Sequence[_Call]) -> None:
        """All in one; where a prompt cannot be answered, each variant's in a call of its own."""
        try:
            self._respond(calls)
        except UserError:
            for call in calls:
                try:
                    self._respond([call])
                except UserError as error:
                    call.error = error

    def _respond(self, calls: Sequence[_Call]) -> None:
        kept = iter(self._shared.think_once([request for call in calls for request in call.requests]))
        for call in calls:
            call.kept = [next(kept) for _ in call.requests]
