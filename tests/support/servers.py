"""Servers of tests: a thread that speaks by plain streams, free ports, and bounded waits."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Self


class ThreadedServer:
    """A context manager, on a free port of this machine unless ``port`` is given. ``_client`` serves a connection."""

    backlog = 100

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self._ready = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._client, "127.0.0.1", self.port, backlog=self.backlog)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


# Below the ports that the system hands out (32768 and up), each process of the suite has its own: what is free now is
# then still free when a child binds it.
_OWN = 20_000 + 400 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_next = itertools.count(os.getpid() % 200)


def free_port() -> str:
    """A port that nobody listens at, another one each time."""
    while True:
        port = _OWN + next(_next) % 400
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return str(port)


def wait_until(holds: Callable[[], object], seconds: float = 120.0) -> None:
    """Return when ``holds()`` is true. Raises :class:`AssertionError` after ``seconds``."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise AssertionError(f"still not so after {seconds:g} s")
        # leaves the processor to what it waits for
        time.sleep(0.01)
