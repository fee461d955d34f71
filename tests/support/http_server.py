"""The HTTP server of the tests: on a free port of this machine, answering while its ``with`` block runs."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self


class Asked(NamedTuple):
    """A request; ``path`` with its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    data: bytes

    @property
    def body(self) -> Any:
        """The data as JSON."""
        return json.loads(self.data)


class Reply(NamedTuple):
    """``content``: bytes and text as they are, all else as JSON. ``closes``: the connection, behind the reply."""

    status: int
    content: Any = b""
    headers: Mapping[str, str] = {}
    closes: bool = False

    @property
    def data(self) -> bytes:
        text = self.content if isinstance(self.content, str | bytes) else json.dumps(self.content)
        return text.encode() if isinstance(text, str) else text


class Handler(BaseHTTPRequestHandler):
    """Sends what the server's :meth:`LocalServer.reply` returns."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one piece: the second would wait for the client's word of the first
    server: Any

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        reply = self.server.reply(Asked(self.command, self.path, self.headers, data))
        self.close_connection |= reply is None
        if reply is not None:
            self.say(Reply(*reply))

    do_HEAD = do_POST = do_PUT = do_GET

    def say(self, reply: Reply) -> None:
        self.close_connection |= reply.closes
        data = reply.data
        self.send_response(reply.status)
        for name, value in {"content-length": str(len(data)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


class LocalServer(ThreadingHTTPServer):
    """``path``: what its ``url`` ends with."""

    daemon_threads = True
    request_queue_size = 128  # a client that asks for 32 things at once is not turned away
    path = ""

    def __init__(self, handler: type[BaseHTTPRequestHandler] = Handler) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.guard = threading.Lock()

    def reply(self, asked: Asked) -> tuple[Any, ...] | None:
        """A :class:`Reply`, or its first fields; None: the connection ends without one."""
        raise NotImplementedError

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that has gone away is part of the script
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}{self.path}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
