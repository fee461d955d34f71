"""Bytes on a connection: heads and chunks that do not end, trailers, several requests at once."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_support import KNOWN, serving
from stub_upstream import StubUpstream

KEY = b"a-key-of-somebody"
HEALTH = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"


@pytest.fixture(scope="module")
def locked(gate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_bytes(KEY)
    with serving(gate, keys=keys) as running:
        yield running


def talk(port: int, *parts: bytes, until: bytes | None = None) -> bytes:
    """Send the parts; the answer until the server closes, or until it ends with ``until``."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        with contextlib.suppress(ConnectionError):  # the server need not take all of it
            for part in parts:
                client.sendall(part)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while (until is None or not answer.endswith(until)) and (part := client.recv(65_536)):
                answer += part
        return answer


CHUNKED = b"POST /v1/gate HTTP/1.1\r\nhost: a\r\nauthorization: Bearer %s\r\ntransfer-encoding: chunked\r\n\r\n" % KEY
ENDLESS = {
    "value": b"GET /health HTTP/1.1\r\nhost: a\r\nx-long: ",
    "name": b"GET /health HTTP/1.1\r\nhost: a\r\n",
    "path": b"GET /",
    "chunk": CHUNKED + b"1;",
    "trailer": CHUNKED + b"1\r\n{\r\n0\r\nx: ",
}


@pytest.mark.parametrize("begin", ENDLESS.values(), ids=ENDLESS)
def test_lines_that_do_not_end_are_refused_before_they_are_kept(locked: Any, begin: bytes) -> None:
    answer = talk(locked.port, begin, *[b"a" * 10_000] * 200)
    assert answer.startswith(b"HTTP/1.1 4") and b"connection: close" in answer
    assert locked.get("/health").status == 200


def test_blank_lines_alone_are_no_request(locked: Any) -> None:
    assert talk(locked.port, *[b"\r\n" * 5_000] * 20).startswith(b"HTTP/1.1 431 ")


def test_what_stands_behind_a_body_is_no_header(locked: Any) -> None:
    head = b"POST /v1/gate HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n"
    body, key = b'13\r\n{"questions":["a"]}\r\n0\r\n', b"authorization: Bearer %s\r\n" % KEY
    assert talk(locked.port, head + key + b"\r\n" + body + b"\r\n").startswith(b"HTTP/1.1 200 ")
    assert talk(locked.port, head + b"\r\n" + body + key + b"\r\n").startswith(b"HTTP/1.1 401 ")


def test_requests_that_come_together_are_answered_in_turn(locked: Any) -> None:
    last = HEALTH.replace(b"a\r\n\r\n", b"a\r\nconnection: close\r\n\r\n")
    answer = talk(locked.port, HEALTH + HEALTH.replace(b"health", b"nothing") + last)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"401", b"200"]


def test_another_protocol_that_is_offered_is_not_taken_and_no_body_is_lost(locked: Any) -> None:
    body = json.dumps({"questions": ["a"]}).encode()
    ask = b"POST /v1/gate HTTP/1.1\r\nhost: a\r\nauthorization: Bearer " + KEY + b"\r\n%s\r\n"
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMA\r\n"
    told, chunked = b"content-length: %d\r\n" % len(body), b"transfer-encoding: chunked\r\n"
    whole = ask % (offer + told) + body
    parts = [whole[:-5], whole[-5:], ask % (offer + chunked), b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)]
    parts += [HEALTH.replace(b"host", offer + b"host"), whole, ask % (b"connection: close\r\n" + told), body]
    answer = talk(locked.port, *parts)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200"] * 5
    assert answer.count(b'"decisions"') == 4


def test_half_a_head_behind_a_request_does_not_cut_its_answer(gate: Path) -> None:
    body = json.dumps({"model": "stub", "stream": True, "messages": [{"role": "user", "content": KNOWN}]}).encode()
    ask = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    with StubUpstream(pause=0.1) as stub, serving(gate, upstream=stub.url, read_timeout_s=0.2) as server:
        first, _, second = talk(server.port, ask + b"GET /hea").rpartition(b"HTTP/1.1 ")
    assert first.startswith(b"HTTP/1.1 200 ") and first.endswith(b"\r\n0\r\n\r\n") and second.startswith(b"408 ")
