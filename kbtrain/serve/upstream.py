"""The language model's server behind the proxy: requests passed on, answers passed back byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Protocol
from urllib.parse import quote_from_bytes, urlencode, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from kbtrain.net import (
    ERROR_EVENTS,
    LARGEST,
    is_loopback,
    key_from_environment,
    key_headers,
    reply_json,
    split_query,
    states_error,
    tls,
)
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.decision_log import Metrics
from kbtrain.serve.exchange import Header, Upload
from kbtrain.serve.problem import Refused, header_text

HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
}  # fmt: skip
NOT_SENT = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"forwarded"}
NOT_RETURNED = HOP_BY_HOP | {b"server", b"date", b"x-powered-by", b"via"}
OF_CALLER = {b"authorization", b"api-key", b"x-api-key", b"cookie"}  # not passed on where this server has keys
TRIES = 3  # where the connection fails before the first byte
WHOLE = 3600.0  # seconds for an answer as a whole
CONNECT = 5.0  # seconds for opening a connection
IDLE = 5.0  # seconds after which an unused connection is closed, or at most twice as many
LINE = 65_536  # bytes of a line of the upstream's head
LARGE = 2**20  # bytes of a body that is sent in parts, so that no stream waits for it
PAUSE = 0.1  # seconds before the second try, doubled each time

logger = logging.getLogger("kbtrain.serve")


@dataclass(frozen=True)
class UpstreamReply:
    """Status, headers, and the body as it comes.

    One piece holds the bytes of one read: fast models send many tokens at once, and each piece costs what a token
    costs.
    """

    status: int
    headers: list[Header]
    pieces: AsyncIterator[bytes]


class Upstream(Protocol):
    """A server, or a model in this process that answers like one."""

    name: str

    @property
    def paths(self) -> Set[str] | None:
        """Paths behind ``/v1/`` that it answers; None: those of a server by its address, which are not known."""

    def check(self, path: str, body: Mapping[str, Any]) -> None:
        """Raise :class:`Refused` for a request without passages that :meth:`send` would refuse, before a gate and a
        search cost anything."""

    def send(
        self, path: str, data: bytes | Upload, headers: Iterable[Header], query: bytes = b"", method: str = "POST"
    ) -> AbstractAsyncContextManager[UpstreamReply]:
        """Send a request; leaving the context ends the work for it. Raises :class:`Refused` without an answer."""

    async def models(self, headers: Iterable[Header] = ()) -> list[Any]:
        """Entries of the list of models. Raises :class:`Refused` without it, 401 without a client's key."""

    async def close(self) -> None:
        """Release connections and threads."""


class HttpUpstream:
    """A server by its address, with the environment's key.

    Without a key the client's ``Authorization`` or ``X-Api-Key`` is passed on, unless that is a key of this server.
    """

    name = "upstream"
    paths: Set[str] | None = None

    def __init__(self, config: ServeConfig, metrics: Metrics) -> None:
        assert config.upstream is not None
        self._url, query = split_query(config.upstream)
        self._query = urlencode(query)
        self._key = key_from_environment(config.upstream_key_env)
        key_header = key_headers(config.upstream_key_env, config.upstream_key_header)
        self._added = [(name.lower().encode(), value.encode()) for name, value in key_header.items()]
        self._own_keys = config.keys is not None
        has_key = self._own_keys or self._key is not None
        # with cors this server decides which pages may ask
        self._dropped = NOT_SENT | (OF_CALLER if has_key else set()) | ({b"origin"} if config.cors else set())
        self._metrics = metrics
        self._silence = config.upstream_timeout_s
        self._connect = min(CONNECT, self._silence)
        self._session: aiohttp.ClientSession | None = None
        self._proxy = proxy_for(self._url)
        self._trusted = tls() if self._url.startswith("https:") else None

    def _headers(self, headers: Iterable[Header]) -> list[Header]:
        """Headers of a request: those of the client that are passed on, and this server's own."""
        passed_on, dropped = list(headers), set(self._dropped)
        for key, value in passed_on:
            if key == b"connection":
                dropped.update(value.lower().replace(b" ", b"").split(b","))
        passed_on = [
            (key, value)
            for key, value in passed_on
            if key not in dropped and not key.startswith((b"x-kbtrain-", b"x-forwarded-"))
        ]
        if b"accept-encoding" not in dict(passed_on):
            passed_on.append((b"accept-encoding", b"identity"))  # else a server may choose what the client cannot read
        return passed_on + self._added

    def check(self, path: str, body: Mapping[str, Any]) -> None:
        """Check nothing: the server refuses a request itself."""

    @contextlib.asynccontextmanager
    async def send(
        self, path: str, data: bytes | Upload, headers: Iterable[Header], query: bytes = b"", method: str = "POST"
    ) -> AsyncIterator[UpstreamReply]:
        url = self._address(path, quote_from_bytes(query, PRINTABLE))
        headers = list(headers)
        passed_on = self._headers(headers)
        if isinstance(data, Upload):  # some servers read no body without its length
            passed_on += [(name, value) for name, value in headers if name == b"content-length"]
        response = await self._first_bytes(method, url, passed_on, data)
        try:
            if not 200 <= response.status < 600:
                self._metrics.upstream_failures.labels("status").inc()
                raise Refused(502, "upstream_unreachable", f"the upstream answers with a status {response.status}")
            if response.status >= 500:
                self._metrics.upstream_failures.labels("server-error").inc()
            lower = ((key.lower(), value) for key, value in response.raw_headers)
            returned = [
                (key, value)
                for key, value in lower
                if key not in NOT_RETURNED and not key.startswith((b"x-kbtrain-", b"access-control-"))
            ]
            if 300 <= response.status < 400:
                returned = [(k, self._location(url, v, method) if k == b"location" else v) for k, v in returned]
            # the limit on silence does not end an answer of a byte now and then, nor one that the client does not read
            async with asyncio.timeout(WHOLE):
                yield UpstreamReply(response.status, returned, response.content.iter_any())
        except (TimeoutError, aiohttp.ClientError):
            self._metrics.upstream_failures.labels("stream").inc()
            raise
        finally:
            response.close()  # the connection is kept if the answer came whole, else its server sees it end

    def _location(self, url: str, location: bytes, method: str) -> bytes:
        """Where a redirect leads a client: below the upstream by this server's own path; to another host where nothing
        is sent but a request to read. Raises :class:`Refused` for the rest, which would pass this server by."""
        target = urljoin(url, location.decode("latin-1"))
        if target.startswith(f"{self._url}/"):
            return b"/v1/" + target.removeprefix(f"{self._url}/").encode("latin-1")
        if urlsplit(target).hostname != urlsplit(self._url).hostname and method in ("GET", "HEAD"):
            return location
        logger.warning("upstream: it redirects to %s", urlsplit(target)._replace(query="").geturl())
        raise Refused(502, "upstream_redirects", "the upstream redirects to another address; name it in --upstream")

    def _address(self, path: str, query: str = "") -> str:
        """Address of a path, with the caller's query and the upstream's own (Azure's ``api-version``)."""
        whole = "&".join(filter(None, (self._query, query)))
        return f"{self._url}/{path}" + (f"?{whole}" if whole else "")

    async def _request(
        self, method: str, url: str, headers: list[Header], data: bytes | Upload = b""
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = session(self._connect, self._silence, self._trusted)
        body = BytesIO(data) if isinstance(data, bytes) and len(data) > LARGE else data
        seconds = self._connect + self._silence
        async with asyncio.timeout(seconds) as limit:  # a body not taken, a head without end
            if isinstance(data, Upload):
                data.on_part = lambda: limit.reschedule(asyncio.get_running_loop().time() + seconds)
            return await self._session.request(
                method, URL(url, encoded=True), headers=[(k.decode(), header_text(v)) for k, v in headers],
                data=body or None, allow_redirects=False, proxy=self._proxy,
            )  # fmt: skip

    async def _first_bytes(
        self, method: str, url: str, headers: list[Header], data: bytes | Upload
    ) -> aiohttp.ClientResponse:
        """Status and headers; a connection that fails before the first byte of an answer is tried again, unless a part
        of a body that is not kept has been sent."""
        failed = 0
        while True:
            try:
                return await self._request(method, url, headers, data)
            except (TimeoutError, aiohttp.ClientError) as error:
                if isinstance(data, Upload) and data.error is not None:
                    raise data.error from None
                if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
                    self._metrics.upstream_failures.labels("slow").inc()
                    raise Refused(504, "upstream_slow", "the upstream did not answer in time") from None
                if _has_begun(error):
                    self._metrics.upstream_failures.labels("head").inc()
                    logger.warning("upstream: %s in the head of its answer", type(error).__name__)
                    raise Refused(502, "upstream_failed", "the head of the upstream's answer is broken") from None
                failed += 1
                self._metrics.upstream_failures.labels("connection").inc()
                logger.warning("upstream: %s, try %d of %d", type(error).__name__, failed, TRIES)
                if failed >= TRIES or (isinstance(data, Upload) and data.begun):
                    message = f"the upstream cannot be reached ({type(error).__name__}, {failed} tries)"
                    raise Refused(502, "upstream_unreachable", message) from None
                await asyncio.sleep(PAUSE * 2 ** (failed - 1))

    async def models(self, headers: Iterable[Header] = ()) -> list[Any]:
        unread = Refused(502, "upstream_unreachable", "the upstream's list of models cannot be read")
        try:
            async with asyncio.timeout(CONNECT):
                response = await self._request("GET", self._address("models"), self._headers(headers))
                try:
                    if response.status == 401 and self._key is None and not self._own_keys:
                        raise Refused(401, "invalid_api_key", "the upstream lists its models only with a key")
                    if response.status != 200:
                        raise unread
                    return await _read_models(response.content.iter_any())
                finally:
                    response.close()
        except (aiohttp.ClientConnectionError, TimeoutError):
            raise Refused(502, "upstream_unreachable", "the upstream cannot be reached") from None
        except (aiohttp.ClientError, ValueError, KeyError, TypeError):
            raise unread from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _has_begun(error: Exception) -> bool:
    """True for an error behind the first byte of an answer: the request was read, and may cost a second time."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return not isinstance(error.message, str)  # another message holds a part of a head
    return isinstance(error, aiohttp.ClientResponseError | aiohttp.ClientPayloadError)


async def _read_models(pieces: AsyncIterator[bytes]) -> list[Any]:
    """Entries of a list of models. Raises ``ValueError`` for anything else, and for a reply without end."""
    data = bytearray()
    async for piece in pieces:
        data += piece
        if len(data) > LARGEST:
            raise ValueError("too large")
    models = reply_json(data.decode())["data"]
    json.dumps(models, allow_nan=False)  # Python reads NaN, which no client takes
    if not isinstance(models, list) or not all(isinstance(model, dict) for model in models):
        raise ValueError("not a list of models")
    return models


# reasons of an end, in small letters; a text with an error has one of the marks
BROKEN_OFF = {"error", "network_error", "server_error", "abort", "aborted", "cancelled", "timeout", "failed",
              "insufficient_system_resource"}  # fmt: skip
BROKEN = (b"error", b"failed", b"abort", b"cancel", b"timeout", b"exception", b"insufficient_system_resource",
          b"status_code", b'"code"', b'"detail"')  # fmt: skip
LONGEST_ERROR = 65_536  # bytes of a line, or of a body, in which an error is looked for


class ErrorEvents:
    """Errors inside an answer of status 200, an event of a stream or the whole body; :attr:`found` after the first.

    Compressed answers and types other than JSON and server-sent events pass unwatched.
    """

    def __init__(self, headers: Iterable[Header]) -> None:
        values = dict(headers)
        kind = values.get(b"content-type", b"").lower()
        self._streamed = kind.startswith(b"text/event-stream")
        plain = values.get(b"content-encoding", b"identity").lower() == b"identity"
        self._watching = plain and kind.startswith((b"text/event-stream", b"application/json"))
        self._rest = b""
        self.found = False

    def feed(self, piece: bytes) -> None:
        """Look at a piece, wherever it is cut."""
        if not self._watching or self.found:
            return
        self._rest += piece
        if self._streamed:
            lines, _, self._rest = self._rest.rpartition(b"\n")
            self._look_into(lines)
        self._rest = self._rest[:LONGEST_ERROR]

    def end(self) -> None:
        """Look at the rest behind the last line end."""
        self._look_into(self._rest)

    def _look_into(self, data: bytes) -> None:
        small = data.lower()
        if any(mark in small for mark in BROKEN):  # few texts are parsed
            self.found |= any(map(_is_error_line, data.splitlines())) if self._streamed else _is_error(data)


def _is_error_line(line: bytes) -> bool:
    field, _, value = line.partition(b":")
    if field == b"event":
        return value.decode("latin-1").strip() in ERROR_EVENTS
    return field == b"error" or (field == b"data" and _is_error(value))  # the first one: llama.cpp


def _is_error(data: bytes) -> bool:
    """True for a JSON object with an error in it, of the type of one, or with an answer that broke off by one."""
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        return False
    value = value[0] if isinstance(value, list) and value else value  # Gemini
    if not isinstance(value, dict):
        return False
    choices = value.get("choices")
    parts = [value, *(choice for choice in (choices if isinstance(choices, list) else ()) if isinstance(choice, dict))]
    ends = [str(part.get(key)).lower() for part in parts for key in ("finish_reason", "stop_reason")]
    failed = states_error(value) or any(part.get("error") for part in parts)
    return failed or not BROKEN_OFF.isdisjoint(ends)


PRINTABLE = "".join(map(chr, range(33, 127)))


def session(connect: float, silence: float, trusted: ssl.SSLContext | None = None) -> aiohttp.ClientSession:
    """Connections that are kept, without unpacking of answers. Cookies are ignored: one client's are not another's."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE, ssl=trusted or True),
        timeout=aiohttp.ClientTimeout(total=None, connect=connect, sock_read=silence),
        cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False,
        skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"), max_line_size=LINE,
        max_field_size=LINE, max_headers=1000,
    )  # fmt: skip


def proxy_for(url: str) -> str | None:
    """The environment's proxy (HTTPS_PROXY) for an address; none for this machine's own."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or proxy_bypass(host):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"
