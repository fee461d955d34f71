"""A search service on the web as a retriever: anything that answers a GET request with JSON.

Only the public names of header variables are kept in a configuration; their values come from the environment.
"""

from __future__ import annotations

import json
import os
import time
import urllib.parse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
from pydantic import Field

from kbtrain.answers.writing import is_blank
from kbtrain.config import Config
from kbtrain.errors import UserError, strike_all
from kbtrain.net import by_proxy, check_url, key_from_environment, retry_after, tls, whole_text
from kbtrain.records import Hit
from kbtrain.retrieval.base import distinct

RETRY = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT = 60.0  # seconds, also where a server asks for more
_HIGHEST = 1e300  # a score above it, or one that is not a number, is replaced by 1 / rank
_LARGEST = 8 * 2**20  # bytes of a reply


class WebService(Config):
    """Request and reply layout of one search service. Paths are keys joined by dots: ``data.items``."""

    url: str = Field(description="address with {query} and, if the service takes it, {k}")
    results: str = Field("results", description="path to the list of results")
    id: str = Field("url", description="path of a result's id within the result")
    title: str = Field("title", description="path of its title")
    text: str = Field("snippet", description="path of its text")
    score: str | None = Field(None, description="path of its score; null: 1, 1/2, 1/3 ... by rank")
    headers: dict[str, str] = Field({}, description="header -> name of the environment variable with its value")
    timeout_s: float = Field(20, gt=0, description="seconds to wait for a reply")
    attempts: int = Field(5, ge=1, description="tries per query; 429, 5xx and time-outs are tried again")
    parallel: int = Field(4, ge=1, description="queries in progress at once")


class WebSearch:
    """Asks the service for each query. ``dropped`` counts results that had no text or repeated an id.

    A redirect is an error: it could lead the keys to any server.
    """

    def __init__(self, service: WebService, sleep: Callable[[float], None] = time.sleep) -> None:
        self.service = service
        self.dropped = 0
        self._sleep = sleep
        if urllib.parse.urlsplit(service.url).scheme not in ("http", "https") or "{query}" not in service.url:
            raise UserError("key 'web': url must begin with http:// or https:// and hold {query}")
        check_url(service.url, "web")
        missing = [header for header, name in service.headers.items() if name not in os.environ]
        if missing:  # the name is not shown: it may be the key itself
            raise UserError(f"key 'web': header '{missing[0]}': the environment variable that it names is not set")
        self.headers = {header: key_from_environment(name) or "" for header, name in service.headers.items()}
        timeout = httpx2.Timeout(service.timeout_s, pool=None)
        headers = {"accept": "application/json", **self.headers}
        own = {"headers": headers, "timeout": timeout, "verify": tls(), "trust_env": by_proxy(service.url)}
        self._client = httpx2.Client(**own)

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        """At most ``k`` hits for each query, in the service's order. Raises :class:`UserError` when it gives up."""
        with ThreadPoolExecutor(self.service.parallel) as pool:
            replies = list(pool.map(lambda query: self._reply(query, k), queries))
        return [self.hits(reply, query, k) for reply, query in zip(replies, queries, strict=True)]

    def url(self, query: str, k: int) -> str:
        quoted = urllib.parse.quote(query, safe="")
        return self.service.url.replace("{query}", quoted).replace("{k}", str(k))

    def _reply(self, query: str, k: int) -> Any:
        problem = ""
        for attempt in range(self.service.attempts):
            wait = min(_LONGEST_WAIT, 0.5 * 2**attempt)
            try:
                with self._client.stream("GET", self.url(query, k)) as reply:
                    if reply.status_code == 200:
                        return strike_all(json.loads(self._body(reply).decode()))
                    problem = f"HTTP {reply.status_code}"
                    if reply.status_code not in RETRY:
                        break
                    wait = retry_after(reply.headers.get("Retry-After"), _LONGEST_WAIT) or wait
            except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
                problem = str(error) or type(error).__name__
            except (ValueError, RecursionError) as error:
                problem = f"no JSON in the reply ({error})"
            if attempt + 1 < self.service.attempts:
                self._sleep(wait)
        where = f"web search for {query!r:.60} at {urllib.parse.urlsplit(self.service.url).netloc} (key 'web')"
        raise UserError(f"{where}: {problem}; finished questions are kept, run the same again")

    def _body(self, reply: httpx2.Response) -> bytes:
        """The reply's bytes, :data:`_LARGEST` at most. Raises ``TimeoutError`` for one that comes a byte at a time."""
        body, until = bytearray(), time.monotonic() + 2 * self.service.timeout_s
        for part in reply.iter_bytes():
            body += part
            if time.monotonic() > until:
                raise TimeoutError("no whole reply in time")
            if len(body) > _LARGEST:
                break
        return bytes(body)

    def hits(self, reply: Any, query: str, k: int) -> tuple[Hit, ...]:
        """The hits in a reply's JSON. Raises :class:`UserError` where it has no list of results."""
        service, by_id = self.service, dict[str, Hit]()
        rows = at_path(reply, service.results)
        if not isinstance(rows, list):
            raise UserError(f"web search for {query!r:.60}: no list at '{service.results}' of the reply; see key 'web'")
        for rank, row in enumerate(rows, 1):
            text, name = at_path(row, service.text), str(at_path(row, service.id) or f"{query}#{rank}")
            score = None if service.score is None else at_path(row, service.score)
            score = score if isinstance(score, int | float) and abs(score) < _HIGHEST else 1 / rank
            if not isinstance(text, str) or is_blank(text) or name in by_id:
                self.dropped += 1
                continue
            title = str(at_path(row, service.title) or "")
            by_id[name] = Hit(whole_text(name)[0], whole_text(title)[0], whole_text(text)[0], float(score))
        hits, copies = distinct(by_id.values(), k)
        self.dropped += copies
        return hits


def at_path(value: Any, path: str) -> Any:
    """The value at a path of keys and list positions (``items.0.name``), or None."""
    for key in path.split("."):
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value
