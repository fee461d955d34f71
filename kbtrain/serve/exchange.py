"""One HTTP request and its answer: the limits while it is read, and the end of all work when the client leaves."""

from __future__ import annotations

import asyncio
import codecs
import hmac
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError, at, never_show
from kbtrain.io.text_files import read_text
from kbtrain.net import is_loopback
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.problem import Busy, Refused, as_json

if TYPE_CHECKING:
    from kbtrain.serve.decision_log import Metrics

Header = tuple[bytes, bytes]
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LONGEST_HEADERS = 65_536  # bytes; the HTTP library's own limit holds only for heads that come in pieces

logger = logging.getLogger("kbtrain.serve")


class ClientLeft(Exception):
    """The client closed its connection before it had its answer."""


class Exchange:
    """``moment``: the work under way, for the count of clients that left. ``status``: as sent; 0 before. ``first``: the
    first header of each (lower-case) name."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, config: ServeConfig) -> None:
        self.scope = scope
        self.config = config
        self.headers: list[Header] = list(scope["headers"])
        self.status = 0
        self.moment = "body"
        self.sent_to = ""  # the upstream's path, where it is not that of the route
        self.left = False  # the client has closed its connection before the end of its answer
        self.first = dict(reversed(self.headers))
        self._receive, self._send = receive, send
        self._body_read = asyncio.Event()

    @property
    def anthropic(self) -> bool:
        """True for a client of Anthropic's API, whose errors have their own form."""
        path = self.scope["path"]
        return path == "/v1/messages" or path.startswith("/v1/messages/") or b"anthropic-version" in self.first

    async def read(self, as_it_comes: bool = False) -> bytes | Any:
        """The whole body; where it is above the limit, an :class:`Upload` to be sent on ``as_it_comes``.

        Raises :class:`Refused` for one too slow (408), packed (415), or else too large (413).
        """
        encodings = {value.strip().lower() for name, value in self.headers if name == b"content-encoding"}
        if encodings - {b"", b"identity"}:
            raise Refused(415, "encoding", "the header Content-Encoding: send the body as it is", headers=CLOSE)
        limit = int(self.config.max_body_mb * 2**20)
        length = self.first.get(b"content-length", b"0")
        data, more = bytearray(), True
        too_large = length.isdigit() and int(length) > limit
        try:
            async with asyncio.timeout(self.config.read_timeout_s):
                while more and not too_large:
                    part, more = await self.part()
                    data += part
                    too_large = len(data) > limit
        except TimeoutError:
            message = f"the body took longer than {self.config.read_timeout_s:g} s"
            raise Refused(408, "slow", message, headers=CLOSE) from None
        if not too_large:
            return bytes(data).removeprefix(codecs.BOM_UTF8)
        if as_it_comes:
            return Upload(self, bytes(data), more)
        message = f"the body is larger than {self.config.max_body_mb:g} MB; the server's setting --max-body-mb"
        raise Refused(413, "too_large", message, headers=CLOSE)

    async def part(self) -> tuple[bytes, bool]:
        """The next part of the body, and if there are more. Raises :class:`ClientLeft`."""
        message = await self._receive()
        more = bool(message.get("more_body"))
        if not more:
            self._body_read.set()
        if message["type"] == "http.disconnect":
            self.left = True
            raise ClientLeft
        return message.get("body", b""), more

    async def upload(self) -> bytes | Upload:
        """The body to be sent on as it comes; whole if it came at once. Raises as :meth:`Upload.__aiter__` does."""
        upload = Upload(self)
        upload.first, upload.more = await upload.next_part()
        return upload if upload.more else upload.first

    async def until_gone(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work, or cancel it as soon as the client leaves. Raises :class:`ClientLeft`."""
        task = asyncio.ensure_future(work)
        departure = asyncio.ensure_future(self._wait_for_departure())
        try:
            await asyncio.wait({task, departure}, return_when=asyncio.FIRST_COMPLETED)
            self.left = not task.done()
        finally:
            departure.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self.left:
            raise ClientLeft
        task.result()

    async def _wait_for_departure(self) -> None:
        await self._body_read.wait()  # until then the reader of the body sees that the client has left
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def chunk(self, data: bytes, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def reply(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        """Send a whole answer: bytes as they are, any other value as JSON."""
        data = value if isinstance(value, bytes) else as_json(value)
        values = {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
        await self.start(status, ((name.encode(), value.encode("latin-1")) for name, value in values.items()))
        await self.chunk(data, more=False)


class Upload:
    """A body that is sent on while it comes. ``error`` ended it early; ``on_part`` is called with each part."""

    def __init__(self, exchange: Exchange, first: bytes = b"", more: bool = True) -> None:
        self.first, self.more = first, more
        self.begun = False
        self.error: ClientLeft | Refused | None = None
        self.on_part: Callable[[], None] = lambda: None
        self._exchange = exchange

    async def next_part(self) -> tuple[bytes, bool]:
        """The next part, and if there are more. Raises :class:`ClientLeft`, and :class:`Refused` (408) for silence."""
        seconds = self._exchange.config.read_timeout_s
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange.part()
        except TimeoutError:
            raise Refused(408, "slow", f"no part of the body came for {seconds:g} s", headers=CLOSE) from None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The parts, once. Raises :class:`ClientLeft` and :class:`Refused`, which :attr:`error` keeps."""
        if self.begun:
            raise RuntimeError("a body cannot be sent twice")
        self.begun, part, more = True, self.first, self.more
        while True:
            self.on_part()
            if part:
                yield part
            if not more:
                return
            try:
                part, more = await self.next_part()
            except (ClientLeft, Refused) as error:
                self.error = error
                raise


CLOSE = {"connection": "close"}


class Keys:
    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = [key.encode() for key in keys]

    @classmethod
    def read(cls, path: Path) -> Keys:
        """One a line; blank lines and lines that begin with # are skipped. Raises :class:`UserError`."""
        lines = read_text(path).splitlines()
        keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        for number, key in enumerate(keys, 1):
            if len(key) < 16 or not key.isascii() or not key.isprintable() or " " in key:
                raise UserError(f"{at(path)}: key {number}: expected 16 or more letters, digits and signs, no spaces")
            never_show(key)
        if not keys:
            raise UserError(f"{at(path)}: no key in it; write one a line")
        return cls(keys)

    def allow(self, authorization: bytes | None, api_key: bytes | None = None) -> bool:
        """True for ``Bearer KEY``, or for the key as ``X-Api-Key``, as Anthropic's clients send it; compared with every
        key in a time that depends on none of them."""
        scheme, _, token = (authorization or b"").partition(b" ")
        bearer = token.strip() if scheme.lower() == b"bearer" else b""
        valid = False
        for key in self._keys:
            valid |= hmac.compare_digest(key, bearer) | hmac.compare_digest(key, (api_key or b"").strip())
        return valid


Handle = Callable[[Exchange], Coroutine[Any, Any, None]]


class Endpoint:
    """An ASGI application around a handler: checks of keys and origins, the limit on requests, answers to errors.

    ``public``: needs no key, and does not count towards the limit. Without keys every client on this machine is served.
    """

    inflight = 0

    def __init__(self, route: str, handle: Handle, config: ServeConfig, keys: Keys | None, metrics: Metrics) -> None:
        self.route = route
        self.public = route in {"/health", "/ready"}
        self._handle = handle
        self._config, self._keys, self._metrics = config, keys, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._config)
        status = 0
        Endpoint.inflight += not self.public
        try:
            self._admit(exchange)
            await exchange.until_gone(self._handle(exchange))
            status = exchange.status
        except ClientLeft:
            status = 499
            self._metrics.client_left.labels(exchange.moment).inc()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - else uvicorn logs a traceback and answers
            refused = error if isinstance(error, Refused) else self._refusal(error, exchange.status != 0)
            status = refused.status
            if not exchange.status:
                await exchange.reply(status, refused.body(exchange.anthropic), refused.headers)
        finally:
            Endpoint.inflight -= not self.public
            self._metrics.requests.labels(self.route, str(status)).inc()

    def _refusal(self, error: BaseException, started: bool) -> Refused:
        """The answer after an error that is not the client's, with a line in the log."""
        if started:
            # the HTTP server now cuts the connection, so that the answer does not seem whole
            logger.warning("%s: cut off (%s)", self.route, type(error).__name__)
            return Refused(599, "cut-off", "cut off")  # a status of the metrics alone
        if isinstance(error, asyncio.CancelledError):  # uvicorn cancels what is under way 20 s after SIGTERM
            return Busy("the server is stopping")
        logger.error("%s: %s\n%s", self.route, type(error).__name__, place_of(error))
        return Refused(500, "internal", "internal error")

    def _admit(self, exchange: Exchange) -> None:
        size, hosts = len(exchange.scope["raw_path"]) + len(exchange.scope["query_string"]), 0
        for name, value in exchange.headers:
            size += len(name) + len(value)
            hosts += name == b"host"
        if size > LONGEST_HEADERS:
            raise Refused(431, "headers", f"the headers are longer than {LONGEST_HEADERS:,} bytes", headers=CLOSE)
        if exchange.scope["http_version"] == "1.1" and hosts != 1:
            raise Refused(400, "host", "expected one header Host", headers=CLOSE)
        if self.public:
            return
        if self._keys is not None:
            if not self._keys.allow(exchange.first.get(b"authorization"), exchange.first.get(b"x-api-key")):
                message = "no valid API key in the header Authorization: Bearer ... (or X-Api-Key: ...)"
                raise Refused(401, "invalid_api_key", message, headers={"www-authenticate": "Bearer"})
        else:
            self._admit_local(exchange)
        if Endpoint.inflight > self._config.max_inflight:
            raise Busy(f"{Endpoint.inflight} requests are in progress")

    def _admit_local(self, exchange: Exchange) -> None:
        """Refuse what comes from elsewhere: without keys this machine alone is served."""
        if not is_loopback(_host(exchange.first.get(b"host") or b"")):
            # else a page in this machine's browser could reach the server under a name of the page's choice
            raise Refused(403, "host", "the header Host names another machine; give the server a file of API keys")
        # a browser sends a page's request even where the page may not read the answer
        origin = exchange.first.get(b"origin")
        if origin and origin.decode("latin-1") not in self._config.cors and _is_foreign_page(origin.lower()):
            raise Refused(403, "origin", "the header Origin names another machine; give the server a file of API keys")


def place_of(error: BaseException) -> str:
    """Lines of code that an error came through, without its message, which may repeat a client's words."""
    return "".join(traceback.format_tb(error.__traceback__))


def _is_foreign_page(origin: bytes) -> bool:
    """True for a page of another machine, and for one that hides whose it is."""
    scheme, _, host = origin.partition(b"://")
    return scheme == b"null" or (scheme in (b"http", b"https") and not is_loopback(_host(host)))


def _host(header: bytes) -> str:
    """The name in a Host header, without its port."""
    text = header.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text.partition("]")[0].strip("[")
    return text.partition(":")[0]
