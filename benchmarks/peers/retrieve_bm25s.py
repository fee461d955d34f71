"""bm25s as its own documentation uses it: everything in memory while indexing, its own tokenizer, numba."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import bm25s
import Stemmer
from retrieve_loop import Search, serve

STEMMER = Stemmer.Stemmer("english")


def index(passages: Path, folder: Path, backend: str) -> None:
    with open(passages, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    texts = [f"{row['title']} {row['text']}" for row in rows]
    tokens = bm25s.tokenize(texts, stopwords="en", stemmer=STEMMER, show_progress=False)
    made = bm25s.BM25(backend=backend)
    made.index(tokens, show_progress=False)
    made.save(folder, corpus=[{"id": row["id"], "text": row["text"]} for row in rows], show_progress=False)


def opened(folder: Path, backend: str) -> Search:
    made = bm25s.BM25.load(folder, mmap=True, load_corpus=True, show_progress=False)

    def search(queries: Sequence[str], k: int) -> list[list[str]]:
        tokens = bm25s.tokenize(list(queries), stopwords="en", stemmer=STEMMER, show_progress=False)
        found, _ = made.retrieve(tokens, k=k, show_progress=False)
        return [[row["id"] for row in rows] for rows in found]

    return search


if __name__ == "__main__":
    serve(index, opened)
