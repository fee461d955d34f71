"""An event loop to run coroutines in from plain functions, also from within a running loop: a notebook, a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, Self, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class EventLoop:
    """As :class:`asyncio.Runner`, which refuses to run where a loop runs already: there, in its own thread."""

    def __init__(self) -> None:
        is_running = asyncio._get_running_loop() is not None
        self._thread = ThreadPoolExecutor(1, "event-loop") if is_running else None
        self._runner = self._do(asyncio.Runner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._do(self._runner.close)
        if self._thread is not None:
            self._thread.shutdown()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run the coroutine; its result, or what it raises."""
        return self._do(self._runner.run, coroutine)

    def create_task(self, coroutine: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """A task that runs whenever the loop runs."""
        return self._do(self._runner.get_loop).create_task(coroutine)  # which it sets as its thread's own

    def _do(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return call(*args, **kwargs) if self._thread is None else self._thread.submit(call, *args, **kwargs).result()


def run(coroutine: Coroutine[Any, Any, R]) -> R:
    """As :func:`asyncio.run`, from anywhere."""
    with EventLoop() as loop:
        return loop.run(coroutine)
