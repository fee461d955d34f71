"""uvicorn's HTTP protocol with a limit on the time that a request's head may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

LINGER = 2.0  # seconds, and bytes below, for which a refused client may go on sending before it is cut off
MOST_DISCARDED = 64 * 2**20
ANSWER = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class GatheredWrites:
    """A transport that sends what is written within one turn of the event loop at once: a system call for an answer's
    head and first piece, and for pieces that came together, instead of one each.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop, unread: Callable[[], bool]) -> None:
        self._transport, self._loop, self._unread = transport, loop, unread
        self._parts: list[bytes] = []
        self._closing: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        """As of a transport."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """As of a transport: what was written is sent before.

        While the client still sends a request that was refused, only this side ends: a socket closed over unread bytes
        makes the system reset the connection, and the client loses the answer that says why.
        """
        self._flush()
        if self._closing is not None or self._transport.is_closing() or not self._unread():
            self.abort()
        else:
            self._transport.write_eof()
            self._transport.resume_reading()
            self._closing = self._loop.call_later(LINGER, self.abort)

    def is_closing(self) -> bool:
        """As of a transport."""
        return self._closing is not None or bool(self._transport.is_closing())

    def abort(self) -> None:
        """Close at once."""
        if self._closing is not None:
            self._closing.cancel()
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
    _discarded = 0  # bytes that came after the last answer
    _timer: asyncio.TimerHandle | None = None

    @classmethod
    def within(cls, seconds: float) -> type[GuardedProtocol]:
        """The protocol with that limit."""
        return type("GuardedProtocol", (cls,), {"seconds": seconds})

    def connection_made(self, transport: Any) -> None:
        super().connection_made(GatheredWrites(transport, self.loop, self._unread))  # type: ignore[arg-type]
        self._arm()

    def _unread(self) -> bool:
        """True while the client may be sending a request that is answered already."""
        return self.conn.their_state in {h11.SEND_BODY, h11.ERROR}

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            self._discarded += len(data)
            if self._discarded > MOST_DISCARDED:
                self.transport.abort()
            return
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
