"""rank-bm25 with our words (it has no tokenizer); it keeps nothing on disk and has no index to open."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import rank_bm25
from retrieve_loop import Search, serve

from kbtrain.retrieval.tokens import Tokens

MADE: list[tuple[rank_bm25.BM25Okapi, list[str]]] = []


def index(passages: Path, folder: Path, backend: str) -> None:
    with open(passages, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    tokens = Tokens()
    words = [tokens.words(f"{row['title']} {row['text']}") for row in rows]
    MADE.append((rank_bm25.BM25Okapi(words), [row["id"] for row in rows]))


def opened(folder: Path, backend: str) -> Search:
    (made, ids), tokens = MADE[0], Tokens()

    def search(queries: Sequence[str], k: int) -> list[list[str]]:
        return [made.get_top_n(tokens.words(query), ids, n=k) for query in queries]

    return search


if __name__ == "__main__":
    serve(index, opened)
