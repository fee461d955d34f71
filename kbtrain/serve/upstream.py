"""The language model's server behind the proxy: requests passed on, answers passed back byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2

from kbtrain.credentials import key_from_environment
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.echoes import Echoes
from kbtrain.serve.exchange import Header
from kbtrain.serve.metrics import Metrics
from kbtrain.serve.problem import Refused
from kbtrain.serve.streams import AsyncioBackend, AsyncioStream
from kbtrain.servers import LARGEST, is_loopback

HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
}  # fmt: skip
NOT_SENT = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"forwarded"}
NOT_RETURNED = HOP_BY_HOP | {b"server", b"date", b"x-powered-by", b"via"}
FAILED = (
    httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.ProxyError,
    httpcore2.UnsupportedProtocol,
)  # fmt: skip
IDLE = 256  # connections that are kept
PAUSE = 0.1  # seconds before the second try, doubled each time

logger = logging.getLogger("kbtrain.serve")


@dataclass(frozen=True)
class UpstreamReply:
    """Status, headers, and the body's bytes as they come.

    ``connection``: where the chunks are read from, if several may come with one read.
    """

    status: int
    headers: list[Header]
    chunks: AsyncIterator[bytes]
    connection: AsyncioStream | None = None

    async def pieces(self, send: Callable[[bytes], Awaitable[None]]) -> bytes:
        """Send the chunks, the first at once and others joined with those of the same read; returns what is left for
        the end. Each piece costs what a token costs, and fast models send many at once."""
        gathered: list[bytes] = []

        async def flush() -> None:
            if gathered:
                data = b"".join(gathered)
                gathered.clear()
                await send(data)

        if self.connection is not None:
            self.connection.before_read = flush
        first = True
        try:
            async for chunk in self.chunks:
                gathered.append(chunk)
                if first or self.connection is None:
                    await flush()
                if first:
                    await asyncio.sleep(0)  # what is written leaves now, not behind all tokens that came with the first
                first = False
        finally:
            if self.connection is not None:
                self.connection.before_read = None  # the next request's on this connection
        return b"".join(gathered)


class Upstream(Protocol):
    """A server, or a model in this process that answers like one."""

    name: str

    def send(
        self, path: str, data: bytes, headers: Iterable[Header], query: bytes = b""
    ) -> AbstractAsyncContextManager[UpstreamReply]:
        """Send a request; leaving the context ends the work for it. Raises :class:`Refused` without an answer."""
        ...

    async def models(self) -> list[Any]:
        """Entries of the list of models. Raises :class:`Refused` if it cannot be had."""
        ...

    async def close(self) -> None:
        """Release connections and threads."""
        ...


class HttpUpstream:
    """A server by its address.

    Its key comes from the environment, and is struck from what it sends back. Without one the client's own
    ``Authorization`` is passed on, unless that is a key of this server.
    """

    name = "upstream"

    def __init__(self, config: ServeConfig, metrics: Metrics) -> None:
        assert config.upstream is not None
        self._url = config.upstream.rstrip("/")
        self._key = key_from_environment(config.upstream_key_env)
        self._echoes = Echoes(self._key)
        self._own_keys = config.keys is not None
        self._tries = config.upstream_tries
        self._metrics = metrics
        silence = config.upstream_timeout_s
        self._timeout = {"connect": min(5.0, silence), "read": silence, "write": silence}
        self._head_deadline = sum(self._timeout.values())  # status and headers may come a byte at a time, without end
        self._host = urlsplit(self._url).netloc.encode()
        self._pool = connections(self._url)

    def _headers(self, headers: Iterable[Header]) -> list[Header]:
        headers = list(headers)
        named = {part.strip().lower() for key, value in headers if key == b"connection" for part in value.split(b",")}
        own = self._own_keys or self._key is not None
        kept = [
            (key, value)
            for key, value in headers
            if key not in NOT_SENT | named
            and not key.startswith((b"x-kbtrain-", b"x-forwarded-"))
            and not (own and key in {b"authorization", b"cookie"})
            and not (self._echoes and key == b"accept-encoding")  # a compressed reply would hide an echo of the key
        ]
        if self._key is not None:
            kept.append((b"authorization", b"Bearer " + self._key.encode()))
        if not any(key == b"accept-encoding" for key, _ in kept):
            kept.append(
                (b"accept-encoding", b"identity")
            )  # else the client library asks for what this one may not read
        return kept

    @contextlib.asynccontextmanager
    async def send(
        self, path: str, data: bytes, headers: Iterable[Header], query: bytes = b""
    ) -> AsyncIterator[UpstreamReply]:
        """As :meth:`Upstream.send`."""
        url = f"{self._url}/{path}" + (f"?{query.decode('latin-1')}" if query else "")
        request = self._request("POST", url, [*self._headers(headers), (b"content-length", b"%d" % len(data))], data)
        response = await self._first_bytes(request)
        try:
            lower = ((key.lower(), value) for key, value in response.headers)
            kept = [
                (key, self._echoes.struck(value))
                for key, value in lower
                if key not in NOT_RETURNED and not key.startswith(b"x-kbtrain-")
            ]
            connection = response.extensions.get("network_stream")
            reading = connection if isinstance(connection, AsyncioStream) else None
            chunks = self._chunks(response)
            chunks = self._echoes.chunks(chunks) if self._echoes else chunks
            yield UpstreamReply(response.status, kept, chunks, reading)
        finally:
            await response.aclose()

    def _request(self, method: str, url: str, headers: list[Header], data: bytes = b"") -> httpcore2.Request:
        return httpcore2.Request(
            method, url, headers=[(b"host", self._host), *headers], content=data, extensions={"timeout": self._timeout}
        )

    async def _first_bytes(self, request: httpcore2.Request) -> httpcore2.Response:
        """Status and headers; a connection that fails before them is tried again."""
        failed = 0
        while True:
            try:
                async with asyncio.timeout(self._head_deadline):
                    return await self._pool.handle_async_request(request)
            except (httpcore2.ReadTimeout, httpcore2.WriteTimeout, TimeoutError):
                self._metrics.upstream_failures.labels("slow").inc()
                raise Refused(504, "upstream_slow", "the upstream did not answer in time") from None
            except FAILED as error:
                failed += 1
                self._metrics.upstream_failures.labels("connection").inc()
                logger.warning("upstream: %s, try %d of %d", type(error).__name__, failed, self._tries)
                if failed >= self._tries:
                    message = f"the upstream cannot be reached ({type(error).__name__}, {failed} tries)"
                    raise Refused(502, "upstream_unreachable", message) from None
                await asyncio.sleep(PAUSE * 2 ** (failed - 1))

    async def _chunks(self, response: httpcore2.Response) -> AsyncIterator[bytes]:
        try:
            async for chunk in response.aiter_stream():
                yield chunk
        except FAILED:
            self._metrics.upstream_failures.labels("stream").inc()
            raise

    async def models(self) -> list[Any]:
        """As :meth:`Upstream.models`."""
        try:
            async with asyncio.timeout(5.0):
                request = self._request("GET", f"{self._url}/models", self._headers([]))
                response = await self._pool.handle_async_request(request)
                try:
                    found = json.loads(await self._small(response))["data"] if response.status == 200 else None
                finally:
                    await response.aclose()
        except (*FAILED, TimeoutError, ValueError, KeyError, TypeError, RecursionError):
            found = None
        if not isinstance(found, list):
            raise Refused(502, "upstream_unreachable", "the upstream's list of models cannot be read")
        return found

    async def _small(self, response: httpcore2.Response) -> bytes:
        """A whole body without the key. Raises ``ValueError`` for one of more than :data:`LARGEST` bytes."""
        body = bytearray()
        async for chunk in self._chunks(response):
            body += chunk
            if len(body) > LARGEST:
                raise ValueError("a list of models without end")
        return self._echoes.struck(bytes(body))

    async def close(self) -> None:
        """As :meth:`Upstream.close`."""
        await self._pool.aclose()


def connections(url: str) -> httpcore2.AsyncConnectionPool:
    """Connections to one server, kept; through the environment's proxy (HTTPS_PROXY), but not to this machine.

    A layer below httpx2's client, which keeps the cookies that one of our clients was given and sends them with the
    requests of all others, and whose layers cost time at every token.
    """
    parts = urlsplit(url)
    host, proxy = parts.hostname or "", None
    if not is_loopback(host) and not proxy_bypass(host):
        found = getproxies()
        proxy = found.get(parts.scheme) or found.get("all")
    settings: dict[str, Any] = {"max_connections": None, "max_keepalive_connections": IDLE, "keepalive_expiry": 5.0}
    settings |= {"network_backend": AsyncioBackend()}
    if parts.scheme == "https":
        settings["ssl_context"] = httpx2.create_ssl_context()
    if proxy is not None:
        through = httpx2.Proxy(proxy if "://" in proxy else f"http://{proxy}")
        return httpcore2.AsyncHTTPProxy(str(through.url), proxy_auth=through.raw_auth, **settings)
    return httpcore2.AsyncConnectionPool(**settings)
