"""uvicorn's HTTP protocol with limits on the time and the bytes that a request's head may take."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LONGEST = 65_536  # bytes without progress: of a head that does not end, of the lines of chunks
LINGER = 2.0  # seconds for which a refused client may continue to send before it is cut off
MOST_DISCARDED = 64 * 2**20  # bytes of the same
ANSWER = b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class GatheredWrites:
    """A transport that joins all writes of one turn of the event loop: one system call for an answer's head and first
    piece, and for pieces that came together."""

    def __init__(self, transport: Any, protocol: GuardedProtocol) -> None:
        self._transport, self._protocol = transport, protocol
        self._parts: list[bytes] = []
        self._closing: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        """Send later in this turn of the loop; nothing after the close."""
        if self.is_closing():
            return
        if not self._parts:
            self._protocol.loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """Send the rest, then close.

        While the client still sends a refused request, only this side ends: a socket closed over unread bytes makes the
        system reset the connection, and the client loses the answer with the reason.
        """
        self._flush()
        unread = self._protocol.in_head or self._protocol.in_body  # of a request that is answered already
        if self.is_closing() or not unread:
            self.abort()
        else:
            self._transport.write_eof()
            self._transport.resume_reading()
            self._closing = self._protocol.loop.call_later(LINGER, self.abort)

    def is_closing(self) -> bool:
        return self._closing is not None or bool(self._transport.is_closing())

    def abort(self) -> None:
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


class GuardedProtocol(HttpToolsProtocol):
    """Closes connections whose next request's head is not whole after ``seconds``: uvicorn itself has no limit.

    Its parser, in C, keeps a line of any length; here a request ends after :data:`LONGEST` bytes without progress.
    """

    seconds = 10.0
    most_connections: float = math.inf
    _discarded = 0  # bytes that came after the last answer
    _idle_bytes = 0  # since a head was whole, or a part of a body came
    in_head = False
    in_body = False
    _declining = False
    _last_request = False  # broken bytes came behind a whole request: answer it and read nothing more
    _timer: asyncio.TimerHandle | None = None

    @classmethod
    def within(cls, seconds: float, most_connections: float = math.inf) -> type[GuardedProtocol]:
        """The protocol with these limits; connections beyond the second one get a 503 and are closed."""
        return type("GuardedProtocol", (cls,), {"seconds": seconds, "most_connections": most_connections})

    def connection_made(self, transport: Any) -> None:
        super().connection_made(GatheredWrites(transport, self))  # type: ignore[arg-type]
        if len(self.connections) > self.most_connections:
            self.transport.write(ANSWER % b"503 Service Unavailable")
            self.transport.close()
        else:
            self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self._last_request or self.transport.is_closing():
            self._discarded += len(data)
            if self._discarded > MOST_DISCARDED:
                self.transport.abort()
            return
        self._idle_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if self._idle_bytes > LONGEST:
            self._refuse(b"431 Request Header Fields Too Large")
        elif self._answered():
            self._expect_head()

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                self._decline()
                data = data[offer.args[0] :]

    def _decline(self) -> None:
        """Continue after a head that offers another protocol (Java's client offers HTTP/2). The parser ends there, so
        a second one reads the body by the head's fields about its length."""
        framing = (b"content-length", b"transfer-encoding")
        lines = [name + b": " + value + b"\r\n" for name, value in self.headers if name in framing]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._declining = True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(lines) + b"\r\n")
        self._declining = False

    def _answered(self) -> bool:
        """True where the last request, if any, has its answer: the next bytes begin a head."""
        return self.cycle is None or self.cycle.response_complete

    def _may_speak(self) -> bool:
        """True where an error would not break into an answer."""
        return self._answered() or not (self.cycle.response_started or self.pipeline)

    def on_message_begin(self) -> None:
        if not self._declining:
            self.in_head = True
            super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_head:  # else it is a trailer behind the body
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._declining:
            self.in_head, self.in_body, self._idle_bytes = False, True, 0
            self._expect_head(False)
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():  # else the body is still to come
            self.in_body, self._idle_bytes = False, 0
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self.in_head = True  # the client's next bytes are not a request
        newest = self.pipeline[0][0] if self.pipeline else self.cycle
        if newest is not None and not newest.response_complete and not self.in_body:
            newest.keep_alive = False  # the connection is closed behind its answer
            self._last_request = True
        elif self._may_speak():
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.in_head:
            self._expect_head()  # a part of the next head has come already

    def _expect_head(self, begun: bool = True) -> None:
        """Start the time for a head, where it does not run; or end it, once the head has come."""
        if not begun and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif begun and self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._timer = None
        if self._answered():
            self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        """Close, with a status unless an answer is under way."""
        if not self.transport.is_closing():
            if self._may_speak():
                self.transport.write(ANSWER % status)
            self.transport.close()
