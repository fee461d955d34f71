"""A model server that streams made-up tokens, holds where it is told to, and knows when its client has gone."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

from support.servers import ThreadedServer


class StubUpstream(ThreadedServer):
    """In its own thread; a context manager.

    ``requests``: (path, headers, body bytes). ``hold``: "nothing", "first" (never a first byte), "head" (never a token
    behind status and headers) or "stream" (never more than the first token). ``fail``: connections that are closed
    without an answer, one a request, while it is above 0. ``die_after``: tokens after which the connection is cut.
    ``status``: of the answer. ``gone``: set when a client left before its answer was whole.
    """

    backlog = 1000

    def __init__(self, tokens: int = 5, pause: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.pause = tokens, pause
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.models: list[str] | None = ["stub"]  # None: the route is missing
        self.hold = "nothing"
        self.fail = 0
        self.die_after: int | None = None
        self.status = 200
        self.extra_headers: tuple[str, ...] = ()
        self.begun, self.gone = threading.Event(), threading.Event()
        self.sent = b""

    def body(self, number: int = -1) -> Any:
        """A request's body as JSON."""
        return json.loads(self.requests[number][2])

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = head[0].split(" ")
        if method in {"GET", "HEAD"}:
            if self.models is None or not path.endswith("/models"):
                missing = {"code": 404, "message": "File Not Found", "type": "not_found_error"}  # as llama.cpp says it
                self._whole(writer, 404, json.dumps({"error": missing}), method)
                return True
            models = [{"id": name, "object": "model"} for name in self.models]
            self._whole(writer, 200, json.dumps({"object": "list", "data": models}), method)
            return True
        self.requests.append((path, headers, data))
        if self.fail > 0:
            self.fail -= 1
            return False
        try:
            body = json.loads(data)
        except ValueError:
            self._whole(writer, 400, json.dumps({"error": {"message": "no JSON", "type": "invalid_request_error"}}))
            return True
        answer = asyncio.ensure_future(self._answer(writer, body if isinstance(body, dict) else {}))
        left = asyncio.ensure_future(reader.read(1))
        self.begun.set()
        await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            self.gone.set()
            answer.cancel()
            return False
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        return answer.result()

    async def _answer(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        if self.hold == "first":
            await asyncio.sleep(3600)
        if self.status != 200 or not body.get("stream"):
            text = {"error": {"message": "as told"}} if self.status != 200 else self.answer(body)
            self._whole(writer, self.status, json.dumps(text))
            return True
        extra = "".join(f"{line}\r\n" for line in self.extra_headers)
        writer.write(
            b"HTTP/1.1 200 OK\r\nserver: stub/1.0\r\ncontent-type: text/event-stream\r\nx-kbtrain-retrieved: 7\r\n"
            + extra.encode() + b"transfer-encoding: chunked\r\n\r\n"
        )  # fmt: skip
        if self.hold == "head":
            await asyncio.sleep(3600)
        for i in range(self.tokens):
            part = self.part(i, body)
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            self.sent += part
            await writer.drain()
            if self.die_after == i:
                return False
            await asyncio.sleep(3600 if self.hold == "stream" else self.pause)
        writer.write(b"0\r\n\r\n")
        return True

    def part(self, i: int, body: dict[str, Any]) -> bytes:
        """A token of a stream, with bytes that no client of ours may read as text."""
        return f'data: {{"i": {i}, "of": {json.dumps(str(body.get("user")))}}}\n\n'.encode() + b"\xff\x00\r\n"

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        message = {"role": "assistant", "content": "stubbed"}
        return {"id": "1", "object": "chat.completion", "created": 1, "model": "stub", "user": body.get("user"),
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}  # fmt: skip

    def _whole(self, writer: asyncio.StreamWriter, status: int, text: str, method: str = "POST") -> None:
        data = text.encode()
        head = f"HTTP/1.1 {status} Told\r\nserver: stub/1.0\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + (b"" if method == "HEAD" else data))
