"""Searches that a server can ask: BM25 over a corpus, a vector store, an HTTP service, a Python function."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2

from kbtrain.errors import UserError, at
from kbtrain.io.files import path_exists
from kbtrain.io.jsonl import parsed
from kbtrain.io.provenance import meta_of, meta_path
from kbtrain.net import Retry, by_proxy, reply_json, tls
from kbtrain.records import Hit
from kbtrain.retrieval.base import DistinctSearch, distinct, hit_of, refilled
from kbtrain.retrieval.vectors import Embedder, VectorIndex, is_index
from kbtrain.retrieval.web import WebSearch, WebService
from kbtrain.serve.config import NO_SEARCH, ServeConfig
from kbtrain.serve.decide import as_exception
from kbtrain.serve.gate_model import is_of_demo
from kbtrain.serve.problem import Refused

LARGEST = 8 * 2**20  # bytes of a reply
THREADS = 8
logger = logging.getLogger("kbtrain.serve")
R = TypeVar("R")


class SearchFailed(Exception):
    """A search that gave no answer; the message is for the log, and holds no question."""


async def _release_nothing() -> None: ...


@dataclass
class Search:
    """``find``: at most k hits for a query, best first; after an error of any kind the server answers without passages.
    ``close`` releases connections and threads. ``name`` is in answers and logs."""

    name: str
    find: Callable[[str, int], Awaitable[Sequence[Hit]]]
    close: Callable[[], Awaitable[None]] = _release_nothing


async def find_within(search: Search, query: str, k: int, seconds: float) -> Sequence[Hit]:
    """Passages within a deadline. Raises :class:`Refused`: 504 for a slow search, else 502, with a line in the log."""
    try:
        async with asyncio.timeout(seconds):
            return await search.find(query, k)
    except TimeoutError:
        raise Refused(504, "search_failed", f"the search took over {seconds:g} s") from None
    except Exception as error:  # noqa: BLE001 - of a service or of a function of the user's
        name = type(error).__name__
        logger.warning("search: %s: %s", name, error if name == "SearchFailed" else "")
        raise Refused(502, "search_failed", "the search failed") from None


def thread_search(name: str, find: Callable[[str, int], Sequence[Hit]], threads: int) -> Search:
    """A function of a query and k, in threads that a process does not wait for at its end."""
    run = in_threads(threads)
    return Search(name, lambda query, k: run(lambda: find(query, k)))


def in_threads(most: int) -> Callable[[Callable[[], R]], Awaitable[R]]:
    """A function that runs others, each in its own thread, ``most`` at a time."""
    free = asyncio.Semaphore(most)

    async def run(call: Callable[[], R]) -> R:
        await free.acquire()
        loop, job = asyncio.get_running_loop(), Future[R]()

        def work() -> None:
            if job.set_running_or_notify_cancel():
                try:
                    job.set_result(call())
                except BaseException as error:  # noqa: BLE001 - it is the caller's, not the thread's end
                    job.set_exception(as_exception(error))
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(free.release)

        threading.Thread(target=work, name="search", daemon=True).start()
        return await asyncio.wrap_future(job)

    return run


def vector_search(index: VectorIndex) -> Search:
    """The passages whose vectors are nearest to the query's (:mod:`kbtrain.retrieval.vectors`)."""
    # the server's deadline is over both tries
    embedder = Embedder(index.card, Retry(tries=2, first=0.05, longest=0.05))
    run = in_threads(THREADS)

    async def find(query: str, k: int) -> Sequence[Hit]:
        try:
            (vector,) = await index.embedded(embedder, [query])
        except UserError:  # its words may repeat the query
            raise SearchFailed(f"no embedding from {index.card.server_url}") from None
        return await run(lambda: refilled(lambda n: index.nearest(vector, n), k)[0])

    return Search(index.card.server_model, find, embedder.close)


def http_search(service: WebService) -> Search:
    """A service that answers a GET with JSON (:class:`~kbtrain.retrieval.web.WebService`); one request a question."""
    web = WebSearch(service)
    timeout, proxied = httpx2.Timeout(service.timeout_s, pool=None), by_proxy(service.url)
    client = httpx2.AsyncClient(timeout=timeout, trust_env=proxied, verify=tls())

    async def find(query: str, k: int) -> Sequence[Hit]:
        headers = {"accept": "application/json", **web.headers}
        async with client.stream("GET", web.url(query, k), headers=headers) as response:
            if response.status_code != 200:
                raise SearchFailed(f"status {response.status_code}")
            data = b""
            async for chunk in response.aiter_bytes():
                data += chunk
                if len(data) > LARGEST:
                    raise SearchFailed(f"a reply above {LARGEST:,} bytes")
        try:
            return web.hits(reply_json(data.decode()), query, k)
        except ValueError:
            raise SearchFailed("no JSON in the reply") from None
        except UserError:
            raise SearchFailed(f"no list at '{service.results}' of the reply") from None

    return Search(f"http ({urlsplit(service.url).netloc})", find, client.aclose)


def open_search(config: ServeConfig) -> Search | None:
    """The search of a configuration; None for none. Raises :class:`UserError`."""
    name = config.search
    if name == "auto":
        return open_source(automatic(config), config)
    if name == "none":
        return None
    if name.startswith(("http://", "https://")):
        settings = {"url": name, "timeout_s": config.search_deadline_s, **config.search_mapping}
        return http_search(parsed(WebService, settings, "key 'search_mapping'"))
    check_search(name)
    if is_index(Path(name)):
        return vector_search(VectorIndex.open(Path(name)))
    if name == "atlas" or Path(name).exists():
        return _bm25(name, {str(field): column for field, column in config.columns.items()})
    return _function(name)


def open_source(source: str | WebService | None, config: ServeConfig) -> Search | None:
    if isinstance(source, WebService):
        return http_search(source.model_copy(update={"timeout_s": config.search_deadline_s}))
    return None if source is None else open_search(config.model_copy(update={"search": source}))


def check_search(name: str) -> None:
    """Raises :class:`UserError` for a file or folder that is missing, before anything is opened."""
    if name not in ("auto", "none", "atlas") and ":" not in name and not Path(name).exists():
        raise UserError(f"key 'search': {at(name)}: no such file or folder; see kbtrain serve --help")


def automatic(config: ServeConfig) -> str | WebService | None:
    """The search of the gate's run folder: its index, or the service that its evidence is from.

    Without one it is the atlas for a model in this process, and none without a model or by a policy without searches.
    Raises :class:`UserError` for an upstream without anything to search.
    """
    run = config.gate.resolve().parent
    if config.upstream is None and config.model is None:
        return None
    if config.upstream is not None and is_of_demo(config.gate):
        raise UserError(
            f"key 'search': {run} holds the demo's passages; name what your upstream's users ask about: a corpus, an "
            f"address or a function (--search), or these passages ({run / 'bm25'}), or none"
        )
    if (source := search_beside(config.gate)) is not None:
        return source
    if config.model is not None:
        return "atlas"
    if config.policy in NO_SEARCH:
        return None
    raise UserError(
        f"key 'search': no index beside {config.gate}; name a corpus, an address or a function by --search, or none"
    )


def search_beside(gate: Path) -> str | WebService | None:
    """The search of a gate's run folder: the web search that its evidence is from, else its index.

    The index is BM25 (a damaged one is an error when it is opened), else vectors.
    """
    run = gate.resolve().parent
    if (service := _service_of(run / "evidence.jsonl")) is not None:
        return service
    if path_exists(run / "bm25"):
        return str(run / "bm25")
    return str(run / "vectors") if is_index(run / "vectors") else None


def _service_of(evidence: Path) -> WebService | None:
    searched = meta_of(evidence).get("config", {})
    if searched.get("retriever") != "web":
        return None
    return parsed(WebService, searched.get("web"), at(meta_path(evidence), field="web"), "; name a search (--search)")


def _bm25(name: str, columns: Mapping[str, str]) -> Search:
    from kbtrain.questions.catalogue import atlas_passages
    from kbtrain.retrieval.bm25 import BM25
    from kbtrain.retrieval.corpus import is_documents, read_passages

    if Path(name).is_dir() and not is_documents(Path(name)):
        index = BM25.load(Path(name))
    elif name == "atlas":
        index = BM25.build(atlas_passages())
    else:
        index = BM25.build(read_passages(Path(name), columns), corpus=Path(name))
    index.warm_up()
    searcher = DistinctSearch(index)
    return thread_search(name, lambda query, k: searcher.search([query], k)[0], threads=1)


def _function(name: str) -> Search:
    module, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())  # for good: a function may import its neighbours when it is called
    try:
        function: Any = importlib.import_module(module)
        for part in attribute.split("."):
            function = getattr(function, part)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: not a module's name
        raise UserError(f"key 'search': {name}: cannot be imported ({error})") from None
    if not callable(function):
        raise UserError(f"key 'search': {name}: is not a function")
    if inspect.iscoroutinefunction(function):

        async def find(query: str, k: int) -> Sequence[Hit]:
            return hits_of(await function(query, k), k)

        return Search(name, find)
    return thread_search(name, lambda query, k: hits_of(function(query, k), k), THREADS)


def hits_of(results: Any, k: int) -> tuple[Hit, ...]:
    """Hits from the results of a function: texts, mappings with ``text`` (and ``title``, ``id``, ``score``), or hits.

    Raises :class:`SearchFailed` for anything else.
    """
    if not isinstance(results, list | tuple):
        raise SearchFailed(f"the function gave {type(results).__name__}, expected a list")
    hits = [hit_of(value, rank) for rank, value in enumerate(results, 1)]
    if None in hits:
        raise SearchFailed("a result is neither a text nor a mapping with 'text'")
    return distinct((hit for hit in hits if hit is not None), k)[0]
