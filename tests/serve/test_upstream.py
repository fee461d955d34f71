"""What reaches the upstream and comes back from it, over TLS as well."""

import asyncio
import contextlib
import gzip
import json
import socket
import ssl
import subprocess
import time
from shutil import which

import aiohttp
import pytest
from serve_support import KNOWN, serving
from stub_upstream import StubUpstream
from support.servers import ThreadedServer

from kbtrain.serve.upstream import session

BODY = b"x" * 200_000  # more than is written at once


class Echo(ThreadedServer):
    """A server in its own thread that answers with the head and the body's length it got, packed by gzip; or one
    that reads nothing. A context manager."""

    def __init__(self, deaf=False):
        super().__init__()
        self.deaf = deaf

    async def _client(self, reader, writer):
        if self.deaf:
            await self._stop.wait()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            body = await reader.readexactly(length)
            told = gzip.compress(json.dumps([head.decode("latin-1"), len(body)]).encode(), mtime=0)
            more = b"content-encoding: gzip\r\nx-long: " + b"y" * 20_000
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%s\r\n\r\n" % (len(told), more) + told)
            await writer.drain()
        writer.close()


@pytest.fixture(scope="module")
def echo(gate):
    with Echo() as stub, serving(gate, upstream=stub.url, max_body_mb=40) as server:
        yield server


def chat(**more):
    return {"model": "stub", "messages": [{"role": "user", "content": KNOWN}], **more}


def test_packed_answers_and_long_lines_of_heads_are_passed_on_as_they_are(echo):
    reply = echo.ask("POST", "/v1/chat/completions?a=1%2F2&b=%C3%A9", chat(), {"x-note": "né", "accept-encoding": "br"})
    assert reply.headers["content-encoding"] == "gzip" and reply.headers["x-long"] == "y" * 20_000
    head, _ = json.loads(gzip.decompress(reply.body))
    assert head.startswith("POST /v1/chat/completions?a=1%2F2&b=%C3%A9 HTTP/1.1\r\n")
    fields = [line.partition(":")[0].lower() for line in head.splitlines()[1:-1]]
    assert sorted(fields) == ["accept-encoding", "content-length", "content-type", "host", "x-note"]
    assert "x-note: n\xc3\xa9\r\n" in head and "accept-encoding: br\r\n" in head


@pytest.mark.parametrize("size", [10, 300_000, 3_000_000])
def test_bodies_of_any_size_arrive_whole(echo, size):
    data = json.dumps(chat(padding="p" * size)).encode()
    _, length = json.loads(gzip.decompress(echo.ask("POST", "/v1/chat/completions", data).body))
    assert length == len(data)


def test_an_upstream_that_does_not_take_a_body_is_a_504(gate):
    with Echo(deaf=True) as stub, serving(gate, upstream=stub.url, max_body_mb=40, upstream_timeout_s=0.2) as server:
        reply = server.post("/v1/chat/completions", chat(padding="p" * 30_000_000))
    assert reply.status == 504 and reply.json["error"]["code"] == "upstream_slow"


needs_openssl = pytest.mark.skipif(which("openssl") is None, reason="needs openssl, to make a certificate")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of localhost with its key, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    ask = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
           "-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]  # fmt: skip
    subprocess.run(ask, cwd=folder, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return both


async def lengths(reader, writer):
    """Answer requests on one connection with the length of their bodies."""
    with contextlib.suppress(asyncio.IncompleteReadError):  # the other end has closed
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            said = b"%d" % len(await reader.readexactly(length))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(said) + said)
            await writer.drain()
    writer.close()


async def asked(certificate, bodies, trusted):
    """Replies of a TLS server on this machine to requests of one session."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(lengths, "localhost", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}/v1/chat/completions"
    replies = []
    try:
        async with session(30.0, 30.0, trusted) as connections:
            for body in bodies:
                reply = await connections.post(url, data=body)
                replies.append(await reply.read())
    finally:
        server.close()
    return replies


@needs_openssl
def test_small_and_large_requests_are_answered_over_tls(certificate):
    trusting = ssl.create_default_context(cafile=str(certificate))
    assert asyncio.run(asked(certificate, [b"hi", BODY, b""], trusting)) == [b"2", b"200000", b"0"]


@needs_openssl
def test_a_certificate_that_nobody_vouches_for_is_a_failed_connection(certificate):
    with pytest.raises(aiohttp.ClientConnectorCertificateError, match="certificate"):
        asyncio.run(asked(certificate, [b"hi"], None))


def test_azures_key_header_and_version_go_with_every_request(gate, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-key-of-azures-1234")
    with Echo() as stub:
        address = f"{stub.url}?api-version=2024-10-21"
        with serving(gate, upstream=address, upstream_key_header="api-key") as server:
            caller = {"authorization": "Bearer of-the-caller-1", "api-key": "of-the-caller-2"}
            reply = server.ask("POST", "/v1/chat/completions?a=1", chat(), caller)
    head, _ = json.loads(gzip.decompress(reply.body))
    assert head.startswith("POST /v1/chat/completions?api-version=2024-10-21&a=1 HTTP/1.1")
    assert "api-key: ***********************" in head.lower() or "api-key: sk-a-key-of-azures-1234" in head.lower()
    assert "of-the-caller" not in head and "authorization" not in head.lower()


# An upstream whose lists of models or answers are none, or have no end: a status, bounded in time


ASKED = {"model": "m", "messages": [{"role": "user", "content": "Who?"}]}


class Liar(StubUpstream):
    """Sends ``listed`` as its list of models, and answers with ``answered``, a byte at a time, without end."""

    listed = b"{}"
    answered = b"200 OK"

    async def _request(self, reader, writer):
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
def stub():
    with Liar() as running:
        yield running


@pytest.fixture(scope="module")
def server(gate, stub):
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
def test_a_list_of_models_that_is_none_is_a_502(listed, stub, server):
    stub.listed = listed
    reply = server.get("/v1/models")
    assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_unreachable")
    assert server.get("/ready").status == 503


class KeyOfTheClient(StubUpstream):
    """Has nothing for those without the key."""

    async def _request(self, reader, writer):
        known = b"authorization: bearer the-client-s-own" in (await reader.readuntil(b"\r\n\r\n")).lower()
        self._whole(writer, *((200, '{"data": [{"id": "m"}]}') if known else (401, '{"error": {}}')))
        return True


def test_where_the_client_s_key_is_passed_on_it_reads_the_list_and_the_server_is_ready(gate, monkeypatch):
    with KeyOfTheClient() as upstream:
        with serving(gate, upstream=upstream.url) as running:
            reply = running.get("/v1/models", {"authorization": "Bearer the-client-s-own"})
            assert (reply.status, reply.json["data"][0]["id"]) == (200, "m")
            assert (running.get("/v1/models").status, running.get("/ready").status) == (401, 200)
        monkeypatch.setenv("OPENAI_API_KEY", "another-key-1")
        with serving(gate, upstream=upstream.url) as running:  # its own key is a wrong one
            assert (running.get("/v1/models").status, running.get("/ready").status) == (502, 503)


def test_an_answer_that_drips_without_end_is_cut_off(server):
    with pytest.raises(Exception, match=r"peer|closed|incomplete|IncompleteRead|chunk"):
        server.post("/v1/chat/completions", ASKED)
    assert server.get("/health").status == 200


class Endless(StubUpstream):
    """More bytes than all buffers on their way hold."""

    def part(self, i, body):
        return b"data: " + b"x" * 65_536 + b"\n\n"


def test_a_client_that_reads_nothing_keeps_its_place_no_longer_than_a_whole_answer_may_last(gate, monkeypatch):
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
def test_an_answer_with_a_status_that_ends_nothing_is_a_502(status, stub, server, monkeypatch, caplog):
    monkeypatch.setattr(stub, "answered", status)
    reply = server.post("/v1/chat/completions", ASKED)
    assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_unreachable")
    assert reply.json["error"]["message"] == f"the upstream answers with a status {status[:3].decode()}"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
