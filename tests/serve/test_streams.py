"""The upstream's connections over TLS: answers come whole, and a certificate that nobody vouches for is refused."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from pathlib import Path
from shutil import which

import httpcore2
import httpx2
import pytest

from kbtrain.serve.upstream import connections

pytestmark = pytest.mark.skipif(which("openssl") is None, reason="needs openssl, to make a certificate")
BODY = b"x" * 200_000  # more than is written at once


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of localhost with its key, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    ask = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
           "-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]  # fmt: skip
    subprocess.run(ask, cwd=folder, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return both


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer requests on one connection with the length of their bodies."""
    with contextlib.suppress(asyncio.IncompleteReadError):  # the other end has closed
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            said = b"%d" % len(await reader.readexactly(length))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(said) + said)
            await writer.drain()
    writer.close()


async def asked(certificate: Path, bodies: list[bytes]) -> list[bytes]:
    """Replies of a TLS server on this machine to requests over one pool."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(echo, "localhost", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}/v1"
    pool = connections(url)
    replies = []
    try:
        for body in bodies:
            headers = [(b"host", b"localhost"), (b"content-length", b"%d" % len(body))]
            request = httpcore2.Request("POST", f"{url}/chat/completions", headers=headers, content=body,
                                        extensions={"timeout": {"connect": 30, "read": 30, "write": 30}})  # fmt: skip
            reply = await pool.handle_async_request(request)
            replies.append(await reply.aread())
            await reply.aclose()
    finally:
        await pool.aclose()
        server.close()
    return replies


def test_small_and_large_requests_are_answered_over_tls(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr(httpx2, "create_ssl_context", lambda: trusting)
    assert asyncio.run(asked(certificate, [b"hi", BODY, b""])) == [b"2", b"200000", b"0"]


def test_a_certificate_that_nobody_vouches_for_is_a_failed_connection(certificate: Path) -> None:
    with pytest.raises(httpcore2.ConnectError, match="certificate"):
        asyncio.run(asked(certificate, [b"hi"]))
