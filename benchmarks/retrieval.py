"""BM25 side by side: ours, bm25s as it comes, rank-bm25; each in a process of its own, the same passages and queries.

Prints seconds, queries a second, peak memory, size on disk, and how often the first hit is ours. rank-bm25 compares a
query with every passage in Python, so it gets fewer queries.

Examples:
  python benchmarks/retrieval.py
  python benchmarks/retrieval.py --passages passages.jsonl --queries nq-open.dev.jsonl --n-queries 1000
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from kbtrain import jsonl
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, at
from kbtrain.records import Passage
from kbtrain.retrieval.corpus import read_passages
from kbtrain.text_table import aligned

PEERS = Path(__file__).parent / "peers"
Peer = Literal["ours", "bm25s", "rank_bm25"]


class RetrievalBenchmarkConfig(Config):
    passages: Path | None = Field(None, description="a corpus (.jsonl, .tsv, .gz); null: made-up passages")
    limit: int = Field(20_000, ge=1, description="passages used, from the first on")
    queries: Path | None = Field(None, description="questions (JSON Lines with text or question); null: made up")
    n_queries: int = Field(500, ge=1, description="queries asked")
    n_slow: int = Field(20, ge=1, description="queries that rank-bm25 is asked")
    k: int = Field(10, ge=1, description="hits per query")
    backend: Literal["numba", "numpy"] = Field("numba", description="how ours and bm25s compute")
    peers: tuple[Peer, ...] = Field(("ours", "bm25s", "rank_bm25"), description="in this order")


def made_up(n: int) -> Iterator[Passage]:
    """Passages of 100 words from a vocabulary with Zipf's frequencies."""
    draw = random.Random(0)
    words = [f"{a}{b}{c}{i}" for i, (a, b, c) in enumerate(itertools.product("bdfgklmnprst", "aeiou", "bdgklmnrst"))]
    words = [word + suffix for suffix in ("", "o", "um", "is", "ar", "en") for word in words]
    weights = list(itertools.accumulate(1 / rank for rank in range(1, len(words) + 1)))
    for i in range(n):
        yield Passage(f"p{i:08}", "", " ".join(draw.choices(words, cum_weights=weights, k=100)))


def texts(config: RetrievalBenchmarkConfig, passages: Path) -> Iterator[str]:
    """Queries: from the file, or the first eight words of some passages."""
    if config.queries is None:
        every = itertools.islice(jsonl.read(Passage, passages), 0, None, max(1, config.limit // config.n_queries))
        yield from (" ".join(passage.text.split()[:8]) for passage in every)
        return
    for number, line in jsonl.lines(config.queries):
        row = json.loads(line)
        if not row.get("text", row.get("question")):
            raise UserError(f"{at(config.queries, number)}: neither 'text' nor 'question' in it")
        yield row.get("text", row.get("question"))


def measure(peer: Peer, folder: Path, config: RetrievalBenchmarkConfig) -> dict[str, Any]:
    """What a peer reports about itself, from its own process."""
    n = config.n_slow if peer == "rank_bm25" else config.n_queries
    files = (PEERS / f"retrieve_{peer}.py", folder / "passages.jsonl", folder / "queries.txt")
    command = [sys.executable, *map(str, (*files, n, config.k, folder / peer, config.backend))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{peer}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(config: RetrievalBenchmarkConfig) -> None:
    rows, first = [], None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = made_up(config.limit) if config.passages is None else read_passages(config.passages)
        n = jsonl.write(folder / "passages.jsonl", itertools.islice(source, config.limit))
        queries = list(itertools.islice(texts(config, folder / "passages.jsonl"), config.n_queries))
        (folder / "queries.txt").write_text("\n".join(" ".join(q.split()) for q in queries), encoding="utf-8")
        for peer in config.peers:
            found = measure(peer, folder, config)
            hits, first = found["first_hits"], first or found["first_hits"]
            same = sum(a == b for a, b in zip(first, hits, strict=False)) / min(len(first), len(hits))
            numbers = ("index_s", "open_s", "queries_s", "peak_mb", "disk_mb")
            rows.append([peer, *(f"{found[key]:,}" for key in numbers), f"{same:.1%}"])
    print(f"{n:,} passages, {len(queries):,} queries, k = {config.k}")
    print(aligned(["", "index s", "open s", "queries/s", "peak MB", "disk MB", "same first hit"], rows))


if __name__ == "__main__":
    run_script(main, RetrievalBenchmarkConfig, __doc__)
