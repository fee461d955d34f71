"""Send a request to a model server, repeated with back-off for passing faults, else one line with the cause.

Repeated: no connection, a connection that breaks, a time-out, the statuses of
:data:`~kbtrain.llm.server_errors.PASSING`, and a reply of status 200 with wrong content (cut off, no JSON, no choices).
A prompt that the server refuses is a :class:`PromptRefusal`. Everything else is the user's to fix.
"""

from __future__ import annotations

import asyncio
import functools
import json
import ssl
from collections.abc import Mapping
from typing import Any

import httpx2

from kbtrain.errors import UserError, strike, strike_all
from kbtrain.llm.server_errors import (
    PASSING,
    PromptRefusal,
    ServerError,
    failed_answer,
    holds_error,
    read_error,
    refused_answer,
)
from kbtrain.net.servers import LARGEST, LONGEST_ASKED, Retry, retry_after, split_query
from kbtrain.runtime.event_loop import run

HINTS = {401: "; set the key (see server_key_env)", 403: "; is the key allowed to use this model?"}
NO_QUOTA = "the account has no quota left: add credit or take another key"
NOT_FOUND = {  # a server that lacks an endpoint and one that lacks a model say the same
    "chat/completions": "; check server_url and server_model, or set server_endpoint: completions",
    "completions": "; check server_url and server_model, or set server_endpoint: chat",
    "embeddings": "; check server_url and server_model: does this server make embeddings?",
}


class NoReply(Exception):
    """A try that failed and may be repeated; ``asked`` is the server's ``Retry-After`` in seconds.

    ``is_empty``: the reply is well-formed and has no answer in it.
    """

    def __init__(self, why: str, wait: float | None = None, is_empty: bool = False) -> None:
        super().__init__(why)
        self.asked = wait
        self.is_empty = is_empty


async def post(
    client: httpx2.AsyncClient, path: str, body: Mapping[str, Any], retry: Retry, holds: str = "choices"
) -> dict[str, Any]:
    """The JSON object that answers ``body``, with something in its field ``holds``.

    Raises :class:`UserError`, and :class:`PromptRefusal` for a body that the server refuses.
    """
    failed = 0
    while True:
        try:
            return await _post_once(client, path, body, holds)
        except NoReply as error:
            failed += 1
            if failed >= retry.tries:
                if error.is_empty and holds == "choices":
                    raise PromptRefusal("other", f"{error}, {failed} times") from None
                raise UserError(
                    f"server {client.base_url}: {error}, {failed} times; what was finished is kept, run the same "
                    "command again when the server is well"
                ) from None
            await asyncio.sleep(retry.seconds(failed, error.asked))


async def _post_once(client: httpx2.AsyncClient, path: str, body: Mapping[str, Any], holds: str) -> dict[str, Any]:
    response, text = await exchange(client, "POST", path, body)
    if response.status_code != 200:
        wait = retry_after(response.headers.get("retry-after"), LONGEST_ASKED)
        raise _failure(client, path, read_error(response.status_code, text), wait)
    try:
        reply = strike_all(json.loads(text))  # a server may echo its caller's headers
    except (ValueError, RecursionError):
        raise NoReply(f"a reply that is not JSON ({strike(text)[:60]!r})") from None
    if not isinstance(reply, dict):
        raise NoReply(f"a reply without {holds} ({strike(text)[:60]!r})")
    if not reply.get(holds):
        if holds_error(reply):
            raise _failure(client, path, read_error(200, text), None)
        raise NoReply(f"a reply without {holds} ({strike(text)[:100]!r})", is_empty=True)
    if (reason := failed_answer(reply)) is not None:
        raise NoReply(f"an answer that broke off ({reason})")
    if (reason := refused_answer(reply)) is not None:
        raise PromptRefusal("content_filter", f"finish reason {reason}")
    return reply


def _failure(client: httpx2.AsyncClient, path: str, error: ServerError, wait: float | None) -> Exception:
    """The exception that a server's error stands for; ``wait``: its ``Retry-After``."""
    if error.is_quota:
        return UserError(f"server {client.base_url}: {error.text}; {NO_QUOTA}, then run the same command again")
    kind = error.refusal
    if kind is not None:
        return PromptRefusal(kind, error.text)
    if error.status in PASSING:
        return NoReply(error.text, error.wait if wait is None else wait)
    hint = NOT_FOUND[path] if error.status == 404 else HINTS.get(error.status, "")
    return UserError(f"server {client.base_url}: {error.text}{hint}")


async def exchange(
    client: httpx2.AsyncClient, method: str, path: str, body: Mapping[str, Any] | None = None
) -> tuple[httpx2.Response, str]:
    """One request: the reply, of any status, and its text, within the client's time and :data:`LARGEST` bytes.

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
    address, query = split_query(url)

    async def ask() -> tuple[httpx2.Response, str]:
        async with httpx2.AsyncClient(
            base_url=address, params=query, headers=dict(headers), timeout=seconds, verify=tls()
        ) as client:
            return await exchange(client, method, path, body)

    return run(ask())


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
