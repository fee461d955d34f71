"""asyncio's own streams as the network of the HTTP client (httpcore2), which else goes through anyio.

A request's head and body leave in one system call, and a connection that its server closed is known without asking the
system: half the processor time of a request to the upstream.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import httpcore2

LARGE = 65_536  # bytes written at once that wait for the system to take them


class AsyncioBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """As in the base class; ``local_address`` and ``socket_options`` are not used here."""
        with _mapped(httpcore2.ConnectTimeout, httpcore2.ConnectError):
            async with asyncio.timeout(timeout):
                return AsyncioStream(*await asyncio.open_connection(host, port))

    async def sleep(self, seconds: float) -> None:
        """As in the base class."""
        await asyncio.sleep(seconds)


class AsyncioStream(httpcore2.AsyncNetworkStream):
    """One connection. ``before_read`` is awaited before each read: what came with the last one is parsed by then."""

    before_read: Callable[[], Awaitable[None]] | None = None

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._parts: list[bytes] = []

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """As in the base class."""
        self._flush()
        if self.before_read is not None:
            await self.before_read()
        with _mapped(httpcore2.ReadTimeout, httpcore2.ReadError):
            async with asyncio.timeout(timeout):
                return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """As in the base class. What is small is sent with what follows it, at the latest before the next read."""
        if not buffer:
            return
        self._parts.append(buffer)
        if len(buffer) < LARGE:
            return
        with _mapped(httpcore2.WriteTimeout, httpcore2.WriteError):
            self._flush()
            async with asyncio.timeout(timeout):
                await self._writer.drain()

    def _flush(self) -> None:
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            self._writer.write(data)

    async def aclose(self) -> None:
        """As in the base class; what was not sent is not sent any more."""
        self._parts.clear()
        self._writer.close()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """As in the base class."""
        self._flush()
        with _mapped(httpcore2.ConnectTimeout, httpcore2.ConnectError):
            async with asyncio.timeout(timeout):
                await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        return self

    def get_extra_info(self, info: str) -> Any:
        """As in the base class. An idle connection is readable once its server has closed it."""
        if info == "is_readable":
            return self._reader.at_eof() or self._writer.is_closing()
        if info == "ssl_object":
            return self._writer.get_extra_info("ssl_object")
        return None


@contextlib.contextmanager
def _mapped(slow: type[Exception], failed: type[Exception]) -> Iterator[None]:
    """The HTTP client's own errors for the system's."""
    try:
        yield
    except TimeoutError as error:
        raise slow(str(error)) from error
    except OSError as error:
        raise failed(str(error)) from error
