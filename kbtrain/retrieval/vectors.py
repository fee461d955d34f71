"""Passages found by embeddings of a server with OpenAI's protocol: a matrix in a folder, compared by cosines.

A folder's ``vectors.json`` says how the vectors were made. ``vectors.f32`` has one of unit length a passage (fp32), in
the corpus's order, so that an interrupted build resumes behind its last whole row. The passages are beside it.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from pydantic import Field

from kbtrain.config import Config
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.files import errors_of
from kbtrain.io.provenance import file_sha256, write_atomically
from kbtrain.llm.dialect import KeyHeader
from kbtrain.llm.server_requests import PromptRefusal, post
from kbtrain.net import LONGEST_ASKED, Retry, by_proxy, check_url, key_headers, split_query, tls
from kbtrain.records import Hit, Passage
from kbtrain.retrieval.corpus import PassageFile, copy_passages, read_passages, read_unique_passages
from kbtrain.runtime.event_loop import EventLoop, run

Vectors = np.ndarray[Any, Any]

CARD = "vectors.json"
NO_VECTOR = {  # change no vector
    "server_key_env", "server_key_header", "server_tries", "server_timeout", "server_patience",
}  # fmt: skip
ROWS = "vectors.f32"


class Embeddings(Config):
    """The server that makes vectors. Many models want a prefix before queries and another before passages."""

    server_url: str = Field(description="server of embeddings in OpenAI's protocol, up to and with /v1")
    server_model: str = Field(description="the model's name on the server")
    server_key_env: str = Field("OPENAI_API_KEY", description="environment variable that holds the server's key")
    server_key_header: KeyHeader = Field("Authorization", description="header that carries the server's key")
    server_tries: int = Field(8, ge=1, description="number of tries for a failing request")
    server_timeout: float = Field(60.0, gt=0, description="seconds to wait for one batch of vectors")
    server_patience: float = Field(
        LONGEST_ASKED, ge=0, description="longest wait that the server may ask for (Retry-After), in seconds"
    )
    query_prefix: str = Field("", description="text before every query, as the model expects it: 'query: '")
    passage_prefix: str = Field("", description="text before every passage: 'passage: '")


class VectorCard(Embeddings):
    """Content of ``vectors.json``. ``passages`` is None until all of them are embedded."""

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
            verify=tls(),
            headers=key_headers(embeddings.server_key_env, embeddings.server_key_header),
            timeout=httpx2.Timeout(embeddings.server_timeout, connect=min(10.0, embeddings.server_timeout), pool=None),
            trust_env=by_proxy(embeddings.server_url),
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


class VectorIndex:
    """A whole index of a folder. Implements :class:`~kbtrain.retrieval.base.Searcher`."""

    def __init__(self, card: VectorCard, folder: Path) -> None:
        self.card, self._passages = card, PassageFile(folder)
        self._rows = np.memmap(folder / ROWS, dtype="<f4", mode="r").reshape(-1, card.dimensions)

    @classmethod
    def open(cls, folder: Path) -> VectorIndex:
        """Raises :class:`UserError` for a folder that is not whole."""
        card = read_card(folder)
        if card.passages is None:
            raise UserError(f"{at(folder)}: not all passages are embedded; run the same `kbtrain run embed` again")
        with errors_of(folder / ROWS):
            n = os.stat(folder / ROWS).st_size / (4 * card.dimensions)
        if n != card.passages or len(PassageFile(folder)) != n:
            found = f"holds {n:g} vectors, expected {card.passages}"
            raise UserError(f"{at(folder)}: {found}; embed the passages again into another folder")
        return cls(card, folder)

    async def embedded(self, embedder: Embedder, queries: Sequence[str]) -> Vectors:
        """Vectors of queries. Raises :class:`UserError`, also for another model than the passages'."""
        vectors = await embedder.vectors([self.card.query_prefix + query for query in queries])
        _check_dimensions(vectors, self.card)
        return vectors

    def nearest(self, vector: Vectors, k: int) -> tuple[Hit, ...]:
        """At most ``k`` hits, best first; the score is the cosine."""
        cosines = self._rows @ (vector / np.linalg.norm(vector))
        best = np.argsort(-cosines, kind="stable")[:k].tolist()
        return tuple(self._passages.hit(i, float(cosines[i])) for i in best)

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:

        async def ask() -> Vectors:
            embedder = Embedder(self.card)
            try:
                return await self.embedded(embedder, queries)
            finally:
                await embedder.close()

        return [self.nearest(vector, k) for vector in run(ask())]


def _check_dimensions(vectors: Vectors, card: VectorCard) -> None:
    if vectors.shape[1] != card.dimensions:
        raise UserError(f"server: embeddings of {vectors.shape[1]} numbers, the passages' have {card.dimensions}; "
                        f"is it the model '{card.server_model}'?")  # fmt: skip


def read_card(folder: Path) -> VectorCard:
    """Raises :class:`UserError`."""
    return jsonl.read_model(folder / CARD, VectorCard)


def is_index(folder: Path) -> bool:
    """True for a folder that :class:`VectorBuild` has written into."""
    return (folder / CARD).is_file()


class VectorBuild:
    """Embeds a corpus into a folder's index, or resumes one that the same settings began.

    ``done``: passages that are embedded, ``whole``: all of them. Raises :class:`UserError`.
    """

    def __init__(
        self, corpus: Path, folder: Path, of: Embeddings, columns: Mapping[str, str] | None = None, parallel: int = 4
    ) -> None:
        self._corpus, self._folder, self._parallel = corpus, folder, parallel
        self._columns = dict(columns or {})
        self._settings = {**of.model_dump(), "corpus_sha256": file_sha256(corpus), "columns": self._columns}
        self.done, self.whole = 0, False
        if is_index(folder):
            self._resume(read_card(folder))

    def _resume(self, card: VectorCard) -> None:
        stored = card.model_dump()
        changed = sorted(key for key, value in self._settings.items() if stored[key] != value and key not in NO_VECTOR)
        if changed:
            other = f"was made with another {', '.join(changed)}"
            raise UserError(f"{at(self._folder / CARD)}: {other}; name another output folder, or remove this one")
        if card.passages is not None:
            VectorIndex.open(self._folder)
            self.done, self.whole = card.passages, True

    def batches(self, size: int) -> Iterator[int]:
        """Embed what is missing, ``size`` passages a request; numbers of passages as they are stored, the first of them
        what was there before."""
        with EventLoop() as loop:
            embedder = Embedder(VectorCard(**self._settings, dimensions=1))
            try:
                yield from self._append_rows(embedder, loop, size)
            finally:
                loop.run(embedder.close())
        with errors_of(self._folder):
            for _ in copy_passages(read_passages(self._corpus, self._columns), self._folder):
                pass
        self._write(read_card(self._folder).dimensions, self.done)
        self.whole = True

    def _append_rows(self, embedder: Embedder, loop: EventLoop, size: int) -> Iterator[int]:
        self.done = self._whole_rows()
        yield self.done
        passages = itertools.islice(read_unique_passages(self._corpus, self._columns), self.done, None)
        while group := list(itertools.islice(passages, size * self._parallel)):
            parts = [group[i : i + size] for i in range(0, len(group), size)]
            for vectors in loop.run(self._embedded(embedder, parts)):
                self._append(vectors)
                yield len(vectors)
        if not self.done:
            raise UserError(f"{at(self._corpus)}: no passages to search: the corpus is empty")

    def _whole_rows(self) -> int:
        """Number of vectors in the folder; what a killed process wrote of one more is cut off."""
        rows = self._folder / ROWS
        if not is_index(self._folder):
            rows.unlink(missing_ok=True)  # their card was removed
        if not rows.exists():
            return 0
        width = 4 * read_card(self._folder).dimensions
        n = rows.stat().st_size // width
        with errors_of(rows):
            os.truncate(rows, n * width)
        return n

    def _append(self, vectors: Vectors) -> None:
        """Add rows of unit length; durable when this returns."""
        if not is_index(self._folder):
            self._write(vectors.shape[1], None)  # first, so that rows always have their width
        _check_dimensions(vectors, read_card(self._folder))
        rows = self._folder / ROWS
        with errors_of(rows), open(rows, "ab") as file:
            file.write((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype("<f4").tobytes())
            file.flush()
            os.fsync(file.fileno())
        self.done += len(vectors)

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
