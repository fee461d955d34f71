"""The streamed index of kbtrain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from retrieve_loop import Search, serve

from kbtrain.retrieval.bm25 import BM25, build_index
from kbtrain.retrieval.corpus import read_passages
from kbtrain.retrieval.tokens import Tokens


def index(passages: Path, folder: Path, backend: str) -> None:
    build_index(read_passages(passages), folder, Tokens())


def opened(folder: Path, backend: str) -> Search:
    made = BM25.load(folder, "numba" if backend == "numba" else "numpy")

    def search(queries: Sequence[str], k: int) -> list[list[str]]:
        return [[hit.passage_id for hit in hits] for hits in made.search(queries, k)]

    return search


if __name__ == "__main__":
    serve(index, opened)
