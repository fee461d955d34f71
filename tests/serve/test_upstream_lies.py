"""An upstream whose lists of models or answers are none, or have no end: a status, bounded in time."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any

import pytest
from serve_support import serving
from stub_upstream import StubUpstream

ASKED = {"model": "m", "messages": [{"role": "user", "content": "Who?"}]}


class Liar(StubUpstream):
    """Sends ``listed`` as its list of models, and answers with ``answered``, a byte at a time, without end."""

    listed = b"{}"
    answered = b"200 OK"

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            length = f"content-length: {len(self.listed)}\r\n\r\n".encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + length + self.listed)
            return True
        writer.write(b"HTTP/1.1 " + self.answered + b"\r\nretry-after: inf\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1\r\n \r\n")
            await writer.drain()
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def stub() -> Any:
    with Liar() as running:
        yield running


@pytest.fixture(scope="module")
def server(gate: Any, stub: Liar) -> Any:
    with pytest.MonkeyPatch.context() as patch, serving(gate, upstream=stub.url, upstream_timeout_s=5) as running:
        patch.setattr("kbtrain.serve.upstream.WHOLE", 0.3)
        yield running


@pytest.mark.parametrize(
    "listed",
    [
        *(b"", b"[]", b"null", b"{}", b"\xff\xfe", b"[" * 10**5, b'{"data": 3}', b'{"data": null}', b'{"data": {}}'),
        *(b'{"data": [3]}', b'{"data": ["x"]}', b'{"data": [{"id": NaN}]}', b'{"data": [{"id": "' + b"x" * 10**5),
    ],
    ids=lambda listed: repr(listed[:20]),
)
def test_a_list_of_models_that_is_none_is_a_502(listed: bytes, stub: Liar, server: Any) -> None:
    stub.listed = listed
    reply = server.get("/v1/models")
    assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_unreachable")
    assert server.get("/ready").status == 503


class KeyOfTheClient(StubUpstream):
    """Has nothing for those without the key."""

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        known = b"authorization: bearer the-client-s-own" in (await reader.readuntil(b"\r\n\r\n")).lower()
        self._whole(writer, *((200, '{"data": [{"id": "m"}]}') if known else (401, '{"error": {}}')))
        return True


def test_where_the_client_s_key_is_passed_on_it_reads_the_list_and_the_server_is_ready(
    gate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KeyOfTheClient() as upstream:
        with serving(gate, upstream=upstream.url) as running:
            reply = running.get("/v1/models", {"authorization": "Bearer the-client-s-own"})
            assert (reply.status, reply.json["data"][0]["id"]) == (200, "m")
            assert (running.get("/v1/models").status, running.get("/ready").status) == (401, 200)
        monkeypatch.setenv("OPENAI_API_KEY", "another-key-1")
        with serving(gate, upstream=upstream.url) as running:  # its own key is a wrong one
            assert (running.get("/v1/models").status, running.get("/ready").status) == (502, 503)


def test_halves_of_characters_in_ids_are_replaced(stub: Liar, server: Any) -> None:
    stub.listed = json.dumps({"data": [{"id": "a\ud800b", "x\udc00": ["\ud83d\ude00", "\ud800"]}]}).encode()
    reply = server.get("/v1/models")
    assert reply.status == 200
    assert reply.json["data"][0] == {"id": "a\ufffdb", "x\ufffd": ["\U0001f600", "\ufffd"]}


def test_an_answer_that_drips_without_end_is_cut_off(server: Any) -> None:
    with pytest.raises(Exception, match=r"peer|closed|incomplete|IncompleteRead|chunk"):
        server.post("/v1/chat/completions", ASKED)
    assert server.get("/health").status == 200


class Endless(StubUpstream):
    """More bytes than all buffers on their way hold."""

    def part(self, i: int, body: dict[str, Any]) -> bytes:
        return b"data: " + b"x" * 65_536 + b"\n\n"


def test_a_client_that_reads_nothing_keeps_its_place_no_longer_than_a_whole_answer_may_last(
    gate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbtrain.serve.upstream.WHOLE", 1)
    body = json.dumps({**ASKED, "stream": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    with (
        Endless(tokens=10**6) as endless,
        serving(gate, upstream=endless.url) as running,
        socket.create_connection(("127.0.0.1", running.port)) as client,
    ):
        client.sendall(head + body)
        until = time.monotonic() + 20
        while not running.metric('kbtrain_upstream_failures_total{kind="stream"}') and time.monotonic() < until:
            time.sleep(0.1)
        assert running.metric("kbtrain_inflight") == 1  # that which asks for this


@pytest.mark.parametrize("status", [b"999 X", b"600 X", b"101 Switching Protocols"])
def test_an_answer_with_a_status_that_ends_nothing_is_a_502(
    status: bytes, stub: Liar, server: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stub, "answered", status)
    reply = server.post("/v1/chat/completions", ASKED)
    assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_unreachable")
    assert reply.json["error"]["message"] == f"the upstream answers with a status {status[:3].decode()}"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
