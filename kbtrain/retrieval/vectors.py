"""Passages in a vector store (Qdrant), found by embeddings of a server with OpenAI's protocol.

A folder's ``vectors.json`` says where the vectors are: in the folder itself, where Qdrant runs in this process (one
process at a time, some 20,000 passages), or in a running Qdrant. Point number i is the corpus's passage i, so the
number of points is the place at which an interrupted build resumes.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import math
import pickle
import re
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import httpx2
import numpy as np
from pydantic import Field

from kbtrain.config import Config
from kbtrain.errors import UserError, at, require, strike
from kbtrain.io import jsonl
from kbtrain.io.files import errors_of, loads
from kbtrain.io.provenance import file_sha256, write_atomically
from kbtrain.io.text_files import read_text
from kbtrain.llm.dialect import KeyHeader
from kbtrain.llm.server_requests import PromptRefusal, post
from kbtrain.net import LONGEST_ASKED, Retry, check_url, is_loopback, key_from_environment, key_headers, split_query
from kbtrain.records import Hit, Passage
from kbtrain.retrieval.corpus import read_unique_passages
from kbtrain.runtime.event_loop import EventLoop, run

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

Vectors = np.ndarray[Any, Any]

CARD = "vectors.json"
NO_VECTOR = {  # change no vector
    "server_key_env", "server_key_header", "store_key_env", "server_tries", "server_timeout", "server_patience",
}  # fmt: skip
NAME = r"^[\w-]{1,200}$"  # of a collection
POINTS = "qdrant"  # subfolder of a store inside this process


class Embeddings(Config):
    """The server that makes vectors. Many models want a prefix before queries and another before passages."""

    server_url: str = Field(description="server of embeddings in OpenAI's protocol, up to and with /v1")
    server_model: str = Field(description="the model's name there")
    server_key_env: str = Field("OPENAI_API_KEY", description="environment variable that holds the server's key")
    server_key_header: KeyHeader = Field("Authorization", description="header that carries the server's key")
    server_tries: int = Field(8, ge=1, description="tries of a request that fails")
    server_timeout: float = Field(60.0, gt=0, description="seconds to wait for one batch of vectors")
    server_patience: float = Field(LONGEST_ASKED, ge=0, description="seconds it may ask to wait (Retry-After)")
    query_prefix: str = Field("", description="put before every query, as the model wants it: 'query: '")
    passage_prefix: str = Field("", description="put before every passage: 'passage: '")
    store: str | None = Field(
        None, description="address of a running Qdrant; null: Qdrant inside this process, kept in the output folder"
    )
    store_key_env: str = Field("QDRANT_API_KEY", description="environment variable that holds Qdrant's key")
    collection: str = Field("passages", pattern=NAME, description="its name in the store")


class VectorCard(Embeddings):
    """Content of ``vectors.json``. ``passages`` is None until all of them are in the store."""

    corpus_sha256: str
    columns: dict[str, str] = Field({})
    dimensions: int = Field(ge=1)
    passages: int | None = None


class Embedder:
    """Texts to vectors, one request a call, or more for a server that refuses the texts at once.

    Raises :class:`UserError` without a reply, and for one of another form.
    """

    def __init__(self, embeddings: Embeddings, retry: Retry | None = None) -> None:
        check_url(embeddings.server_url, "server_url")
        address, query = split_query(embeddings.server_url)
        self._most = sys.maxsize  # texts in one request
        self._model = embeddings.server_model
        self._retry = retry or Retry(tries=embeddings.server_tries, patience=embeddings.server_patience)
        self._client = httpx2.AsyncClient(
            base_url=address,
            params=query,
            headers=key_headers(embeddings.server_key_env, embeddings.server_key_header),
            timeout=httpx2.Timeout(embeddings.server_timeout, connect=min(10.0, embeddings.server_timeout), pool=None),
            trust_env=not is_loopback(urlsplit(embeddings.server_url).hostname or ""),
        )

    async def vectors(self, texts: Sequence[str]) -> Vectors:
        """Shape (texts, dimensions), fp32."""
        parts = [texts[i : i + self._most] for i in range(0, max(1, len(texts)), self._most)]
        return _stack_rows([await self._vectors(part) for part in parts])

    async def _vectors(self, texts: Sequence[str]) -> Vectors:
        """Vectors of one request, or of its halves where the server refuses it."""
        body = {"model": self._model, "input": list(texts)}
        try:
            return vectors_of(await post(self._client, "embeddings", body, self._retry, holds="data"), len(texts))
        except PromptRefusal as refusal:
            if len(texts) == 1:
                raise UserError(f"server {self._client.base_url}: {refusal.message}; text {texts[0][:40]!r}") from None
        half = math.ceil(len(texts) / 2)
        first = await self._vectors(texts[:half])
        self._most = min(self._most, half)
        return _stack_rows([first, await self._vectors(texts[half:])])

    async def close(self) -> None:
        """Release connections."""
        await self._client.aclose()


def _stack_rows(parts: Sequence[Vectors]) -> Vectors:
    """The rows of all parts. Raises :class:`UserError` for parts of different lengths."""
    if len({part.shape[1] for part in parts}) > 1:
        raise UserError("server: embeddings of different lengths; is it one model?")
    return np.concatenate(parts)


def vectors_of(reply: Mapping[str, Any], n: int) -> Vectors:
    """The vectors of a reply in the order of the texts. Raises :class:`UserError` for any other reply."""
    try:
        rows = sorted(reply["data"], key=lambda row: int(row["index"]))
        vectors = np.array([row["embedding"] for row in rows], dtype=np.float32)
        right = [int(row["index"]) for row in rows] == list(range(n)) and vectors.ndim == 2
    except (KeyError, TypeError, ValueError, OverflowError):
        right = False
    if not right:
        raise UserError(f"server: expected {n} embeddings of one length, numbered from 0; is it OpenAI's protocol?")
    if not np.isfinite(vectors).all() or not vectors.any(axis=1).all():
        raise UserError("server: an embedding that is zero or holds NaN")
    return vectors


class Store:
    """One Qdrant collection, whose point i holds passage i. Raises :class:`UserError` where it cannot be used."""

    def __init__(self, client: QdrantClient, collection: str, place: str) -> None:
        self._client, self._collection, self._place = client, collection, place

    @classmethod
    def open(cls, card: Embeddings, folder: Path) -> Store:
        """The running Qdrant's, or the one kept in the folder."""
        require("qdrant_client", "vectors")
        from qdrant_client import QdrantClient

        if card.store is None:
            points = folder / POINTS
            check_points(points)
            try:
                return cls(QdrantClient(path=str(points)), card.collection, str(points))
            except RuntimeError:
                raise UserError(f"{at(points)}: another process uses it; stop that one, or take a running Qdrant "
                                "(key 'store')") from None  # fmt: skip
            except (OSError, ValueError, KeyError, TypeError, AttributeError, sqlite3.Error) as error:
                raise UserError(f"{at(points)}: cannot be opened ({type(error).__name__})") from None
        check_url(card.store, "store")
        key = key_from_environment(card.store_key_env)
        try:
            client = QdrantClient(url=card.store, api_key=key, timeout=30, check_compatibility=False)
        except ValueError as error:
            raise UserError(f"key 'store': no valid address ({strike(str(error))[:100]})") from None
        return cls(client, card.collection, card.store)

    def count(self) -> int | None:
        """Number of points; None if the collection does not exist."""
        if not self._call(lambda: self._client.collection_exists(self._collection)):
            return None
        return int(self._call(lambda: self._client.count(self._collection, exact=True)).count)

    def create(self, dimensions: int) -> None:
        """Make the collection; vectors are compared by their cosine."""
        from qdrant_client import models

        layout = models.VectorParams(size=dimensions, distance=models.Distance.COSINE)
        self._call(lambda: self._client.create_collection(self._collection, vectors_config=layout))

    def add(self, first: int, passages: Sequence[Passage], vectors: Vectors) -> None:
        """Passages numbered from ``first``, one after the other: what a kill leaves is a beginning without holes."""
        from qdrant_client import models

        points = [
            models.PointStruct(id=i, vector=row.tolist(), payload={"id": p.id, "title": p.title, "text": p.text})
            for i, (p, row) in enumerate(zip(passages, vectors, strict=True), first)
        ]
        self._call(lambda: self._client.upsert(self._collection, points, wait=True))

    def nearest(self, vector: Vectors, k: int) -> tuple[Hit, ...]:
        """At most ``k`` hits, best first; the score is the cosine."""
        reply = self._call(lambda: self._client.query_points(self._collection, query=vector.tolist(), limit=k))
        hits = []
        for point in reply.points:
            payload = point.payload or {}
            if not all(isinstance(payload.get(name), str) for name in ("id", "title", "text")):
                raise UserError(f"{at(self._place)}: a point without id, title and text; embed the passages again")
            hits.append(Hit(payload["id"], payload["title"], payload["text"], float(point.score)))
        return tuple(hits)

    def close(self) -> None:
        """Release connections, or the folder."""
        self._client.close()

    def _call(self, ask: Any) -> Any:
        from qdrant_client.http.exceptions import ApiException

        try:
            with errors_of(self._place):
                return ask()
        except (ApiException, ValueError, sqlite3.Error) as error:
            reason = " ".join(strike(str(error)).split())[:150] or type(error).__name__
            raise UserError(f"vector store {self._place}: {reason}") from None


class _PointsAlone(pickle.Unpickler):
    """Reads what Qdrant's own points are made of, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("qdrant_client.http.models.models", "PointStruct"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name}")


def check_points(folder: Path) -> None:
    """Raise :class:`UserError` for a store that is more than data: Qdrant in a process keeps points as pickles, and a
    folder may come from anybody. A collection's name may be no path, since Qdrant would read the points from there.
    """
    meta = folder / "meta.json"
    try:
        for name in loads(read_text(meta))["collections"] if meta.exists() else ():
            if not re.match(NAME, name):
                raise ValueError(f"no name of a collection: '{name}'")
        for file in folder.glob("collection/*/storage.sqlite"):
            with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as rows:
                _check_pickles(rows)
    except Exception as error:  # noqa: BLE001 - a broken pickle raises any error
        reason = f"{type(error).__name__}: {str(error)[:60]}"
        raise UserError(
            f"{at(folder)}: holds more than points, or is broken ({reason}); remove the folder and embed the passages "
            "again"
        ) from None


def _check_pickles(rows: sqlite3.Connection) -> None:
    kinds = rows.execute("SELECT type FROM sqlite_master WHERE name = 'points' COLLATE NOCASE").fetchall()
    if kinds not in ([], [("table",)]):  # a view may give other rows the next time; without any no point is in it
        raise ValueError("points that are not a table")
    for (point,) in rows.execute("SELECT point FROM points") if kinds else ():
        _PointsAlone(io.BytesIO(point)).load()


class VectorIndex:
    """A whole index of a folder. Implements :class:`~kbtrain.retrieval.base.Searcher`; a context manager."""

    def __init__(self, card: VectorCard, store: Store) -> None:
        self.card, self.store = card, store

    @classmethod
    def open(cls, folder: Path) -> VectorIndex:
        """Raises :class:`UserError` for a folder that is not whole, and a store that holds something else."""
        card = read_card(folder)
        if card.passages is None:
            raise UserError(f"{at(folder)}: not all passages are embedded; run the same data_gen/embed.py again")
        store = Store.open(card, folder)
        count = store.count()
        if count != card.passages:
            store.close()
            content = "no such collection" if count is None else f"{count} passages"
            raise UserError(f"{at(folder)}: the store has {content} in '{card.collection}', expected {card.passages}; "
                            "embed the passages again into another folder or collection")  # fmt: skip
        return cls(card, store)

    def embedder(self, retry: Retry | None = None) -> Embedder:
        """The server that embeds queries; to be closed."""
        return Embedder(self.card, retry)

    async def embedded(self, embedder: Embedder, queries: Sequence[str]) -> Vectors:
        """Vectors of queries. Raises :class:`UserError`, also for another model than the passages'."""
        vectors = await embedder.vectors([self.card.query_prefix + query for query in queries])
        if vectors.shape[1] != self.card.dimensions:
            raise UserError(f"server: embeddings of {vectors.shape[1]} numbers, the passages' have "
                            f"{self.card.dimensions}; is it the model '{self.card.server_model}'?")  # fmt: skip
        return vectors

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        """As :meth:`kbtrain.retrieval.base.Searcher.search`."""

        async def ask() -> Vectors:
            embedder = self.embedder()
            try:
                return await self.embedded(embedder, queries)
            finally:
                await embedder.close()

        return [self.store.nearest(vector, k) for vector in run(ask())]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()


def read_card(folder: Path) -> VectorCard:
    """Raises :class:`UserError`."""
    return jsonl.read_model(folder / CARD, VectorCard)


def is_index(folder: Path) -> bool:
    """True for a folder that :class:`VectorBuild` has written into."""
    return (folder / CARD).is_file()


class VectorBuild:
    """Embeds a corpus into a folder's index, or resumes one that the same settings began.

    ``done``: passages that are in the store, ``whole``: all of them. Raises :class:`UserError`.
    """

    def __init__(
        self,
        corpus: Path,
        folder: Path,
        embeddings: Embeddings,
        columns: Mapping[str, str] | None = None,
        parallel: int = 4,
    ) -> None:
        self._corpus, self._folder, self._parallel = corpus, folder, parallel
        self._columns = dict(columns or {})
        settings = {**embeddings.model_dump(), "corpus_sha256": file_sha256(corpus), "columns": self._columns}
        self._settings, self.done, self.whole = settings, 0, False
        if is_index(folder):
            self._resume(read_card(folder))

    def _resume(self, card: VectorCard) -> None:
        stored = card.model_dump()
        changed = sorted(key for key, value in self._settings.items() if stored[key] != value and key not in NO_VECTOR)
        if changed:
            raise UserError(f"{at(self._folder / CARD)}: was made with another {', '.join(changed)}; name another "
                            "output folder, or remove this one")  # fmt: skip
        if card.passages is not None:
            VectorIndex.open(self._folder).store.close()
            self.done, self.whole = card.passages, True

    def batches(self, size: int) -> Iterator[int]:
        """Embed what is missing, ``size`` passages a request; numbers of passages as they are stored, the first of them
        what was there before.
        """
        card = VectorCard(**self._settings, dimensions=1)
        with closing(Store.open(card, self._folder)) as store, EventLoop() as loop:
            embedder = Embedder(card)
            try:
                yield from self._store_rows(store, embedder, loop, size)
            finally:
                loop.run(embedder.close())

    def _store_rows(self, store: Store, embedder: Embedder, loop: EventLoop, size: int) -> Iterator[int]:
        resumed, count = is_index(self._folder), store.count()
        if count is not None and not resumed:
            name = self._settings["collection"]
            raise UserError(f"key 'collection': the store has a '{name}' that this folder did not make; name another")
        self.done = count or 0
        yield self.done
        passages = itertools.islice(read_unique_passages(self._corpus, self._columns), self.done, None)
        while group := list(itertools.islice(passages, size * self._parallel)):
            parts = [group[i : i + size] for i in range(0, len(group), size)]
            for part, vectors in zip(parts, loop.run(self._embedded(embedder, parts)), strict=True):
                if count is None:
                    self._write(vectors.shape[1], None)  # first, so that a collection always has its folder
                    store.create(vectors.shape[1])
                    count = 0
                store.add(self.done, part, vectors)
                self.done += len(part)
                yield len(part)
        if not self.done:
            raise UserError(f"{at(self._corpus)}: no passages to search: the corpus is empty")
        self._write(read_card(self._folder).dimensions, self.done)
        self.whole = True

    async def _embedded(self, embedder: Embedder, parts: Sequence[Sequence[Passage]]) -> list[Vectors]:
        prefix = self._settings["passage_prefix"]
        return await asyncio.gather(*(embedder.vectors([prefix + text_of(p) for p in part]) for part in parts))

    def _write(self, dimensions: int, passages: int | None) -> None:
        card = VectorCard(**self._settings, dimensions=dimensions, passages=passages)
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / CARD, card.model_dump_json(indent=1) + "\n")


def text_of(passage: Passage) -> str:
    """The text to embed: the passage's, behind its title unless the text contains it."""
    return passage.text if passage.title in passage.text else f"{passage.title}\n{passage.text}"
