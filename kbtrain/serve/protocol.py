"""uvicorn's HTTP protocol with a limit on the time that a request's head may take."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

ANSWER = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class GatheredWrites:
    """A transport that sends what is written within one turn of the event loop at once: a system call for an answer's
    head and first piece, and for pieces that came together, instead of one each.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """As of a transport."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """As of a transport: what was written is sent before."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class GuardedProtocol(H11Protocol):
    """Closes connections whose next request's head is not whole after ``seconds``: uvicorn itself waits for ever.

    h11 refuses heads above 64 KiB.
    """

    seconds = 10.0
    _timer: asyncio.TimerHandle | None = None

    @classmethod
    def within(cls, seconds: float) -> type[GuardedProtocol]:
        """The protocol with that limit."""
        return type("GuardedProtocol", (cls,), {"seconds": seconds})

    def connection_made(self, transport: Any) -> None:
        super().connection_made(GatheredWrites(transport, self.loop))  # type: ignore[arg-type]
        self._arm()

    def data_received(self, data: bytes) -> None:
        if self._timer is None and self.conn.their_state is h11.IDLE:
            self._arm()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._disarm()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0] and self._timer is None:
            self._arm()  # a part of the next head has come already

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _arm(self) -> None:
        self._timer = self.loop.call_later(self.seconds, self._too_slow)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.write(ANSWER)
            self.transport.close()
