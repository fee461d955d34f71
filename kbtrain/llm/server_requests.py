"""Send a request to a model server, repeated with back-off for passing faults, else one line with the cause.

Repeated: no connection, a connection that breaks, a time-out, the statuses of :data:`PASSING`, and a reply of status
200 with wrong content (cut off, no JSON, no choices). Everything else is the user's to mend.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from kbtrain.errors import UserError, strike, strike_all
from kbtrain.event_loop import run
from kbtrain.servers import LARGEST, LONGEST_ASKED, retry_after

PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}
HINTS = {
    401: "; set the key (see server_key_env)",
    403: "; is the key allowed to use this model?",
}
NOT_FOUND = {  # a server that lacks an endpoint and one that lacks a model say the same
    "chat/completions": "; check server_url and server_model, or set server_endpoint: completions",
    "completions": "; check server_url and server_model, or set server_endpoint: chat",
    "embeddings": "; check server_url and server_model: does this server make embeddings?",
}


@dataclass(frozen=True)
class Retry:
    """Number of tries and the pauses between them: ``first`` seconds, doubled each time up to ``longest``, times a
    random number between 1/2 and 1 (so that clients which failed together do not come back together).

    A server's ``Retry-After`` counts as the least wait, up to ``patience`` seconds.
    """

    tries: int = 8
    first: float = 1.0
    longest: float = 60.0
    patience: float = LONGEST_ASKED

    def seconds(self, failed: int, asked: float | None) -> float:
        """Seconds to wait after ``failed`` tries; ``asked`` is the server's own request."""
        wait = min(self.longest, self.first * 2.0 ** min(failed - 1, 30)) * random.uniform(0.5, 1.0)
        return max(wait, min(asked or 0.0, self.patience))


class NoReply(Exception):
    """A try that failed and may be repeated; ``asked`` is the server's ``Retry-After`` in seconds."""

    def __init__(self, why: str, asked: float | None = None) -> None:
        super().__init__(why)
        self.asked = asked


async def post(
    client: httpx2.AsyncClient, path: str, body: Mapping[str, Any], retry: Retry, holds: str = "choices"
) -> dict[str, Any]:
    """The JSON object that answers ``body``, with something in its field ``holds``. Raises :class:`UserError`."""
    failed = 0
    while True:
        try:
            return await _once(client, path, body, holds)
        except NoReply as error:
            failed += 1
            if failed >= retry.tries:
                raise UserError(
                    f"server {client.base_url}: {error}, {failed} times; what was finished is kept, run the same "
                    "command again when the server is well"
                ) from None
            await asyncio.sleep(retry.seconds(failed, error.asked))


async def _once(client: httpx2.AsyncClient, path: str, body: Mapping[str, Any], holds: str) -> dict[str, Any]:
    response, text = await exchange(client, "POST", path, body)
    if response.status_code in PASSING:
        why = f"status {response.status_code} ({message(response, text)})"
        raise NoReply(why, retry_after(response.headers.get("retry-after"), LONGEST_ASKED))
    if response.status_code != 200:
        status = f"status {response.status_code} ({message(response, text)})"
        hint = NOT_FOUND[path] if response.status_code == 404 else HINTS.get(response.status_code, "")
        raise UserError(f"server {client.base_url}: {status}{hint}")
    try:
        reply = strike_all(json.loads(text))  # a server may echo its caller's headers
    except (ValueError, RecursionError):
        raise NoReply(f"a reply that is not JSON ({strike(text)[:60]!r})") from None
    if not isinstance(reply, dict) or not reply.get(holds):
        raise NoReply(f"a reply without {holds} ({message(response, text)})")
    return reply


async def exchange(
    client: httpx2.AsyncClient, method: str, path: str, body: Mapping[str, Any] | None = None
) -> tuple[httpx2.Response, str]:
    """One request: the reply, of whatever status, and its text, within the client's time and :data:`LARGEST` bytes.

    Raises :class:`NoReply` where none comes, and :class:`UserError` for an address that cannot be asked.
    """
    try:
        async with asyncio.timeout(_deadline(client)), client.stream(method, path, json=body) as response:
            return response, await _text_of(response)
    except TimeoutError:  # of the whole request: a reply may come a byte at a time
        raise NoReply("no whole answer in time") from None
    except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
        raise UserError(f"key 'server_url': {error}") from None
    except httpx2.TimeoutException as error:
        raise NoReply(f"no answer in time ({type(error).__name__})") from None
    except (httpx2.RequestError, ValueError) as error:  # a ValueError: headers or a compression that cannot be read
        raise NoReply(f"connection failed ({type(error).__name__}: {strike(str(error))[:100]})") from None


def ask_once(
    url: str, method: str, path: str, headers: Mapping[str, str], seconds: float, body: Mapping[str, Any] | None = None
) -> tuple[httpx2.Response, str]:
    """:func:`exchange` for one who asks a server a single time, not more than ``seconds`` for connecting or reading."""

    async def asked() -> tuple[httpx2.Response, str]:
        async with httpx2.AsyncClient(base_url=url, headers=dict(headers), timeout=seconds, verify=tls()) as client:
            return await exchange(client, method, path, body)

    return run(asked())


@functools.cache
def tls() -> ssl.SSLContext:
    """One for all clients of servers: reading the certificates takes longer than asking."""
    return httpx2.create_ssl_context()


def _deadline(client: httpx2.AsyncClient) -> float | None:
    """Seconds for a request as a whole; None: none was set."""
    return None if client.timeout.read is None else client.timeout.read + (client.timeout.connect or 0.0)


async def _text_of(response: httpx2.Response) -> str:
    """The body as text. Raises :class:`NoReply` for one without end."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > LARGEST:
            raise NoReply(f"a reply of more than {LARGEST >> 20} MiB")
    return body.decode("utf-8", "replace")


def message(response: httpx2.Response, text: str) -> str:
    """A server's error message in one short line, from its reply and that one's text."""
    said: Any = strike(text)
    with contextlib.suppress(ValueError, RecursionError):
        said = strike_all(json.loads(text))  # before it is cut: a part of a key is no text that could be struck
    for key in ("error", "message"):
        if isinstance(said, dict):
            said = said.get(key) or said
    return " ".join(str(said).split())[:200] or response.reason_phrase
