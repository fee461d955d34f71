"""What every retrieval peer does: index the passages, open the index, answer the queries; one JSON line on stdout."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kbtrain.provenance import peak_rss_mb

Search = Callable[[Sequence[str], int], list[list[str]]]  # queries, k -> ids of the hits, best first
WARM_UP = 2  # queries before the clock runs: numba compiles


def serve(index: Callable[[Path, Path, str], None], opened: Callable[[Path, str], Search]) -> None:
    """Arguments: passages.jsonl, queries.txt, number of queries, k, folder of the index, backend."""
    passages, queries, n, k, folder, backend = sys.argv[1:]
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print
    asked = Path(queries).read_text(encoding="utf-8").splitlines()[: int(n)]
    Path(folder).mkdir()
    start = time.perf_counter()
    index(Path(passages), Path(folder), backend)
    indexed = time.perf_counter()
    search = opened(Path(folder), backend)
    ready = time.perf_counter()
    search(asked[:WARM_UP], int(k))
    warm = time.perf_counter()
    hits = search(asked, int(k))
    done = time.perf_counter()
    size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    replies.write(json.dumps({
        "index_s": round(indexed - start, 1), "open_s": round(ready - indexed, 2),
        "queries_s": round(len(asked) / (done - warm)), "disk_mb": round(size / 2**20),
        "peak_mb": round(peak_rss_mb()),
        "first_hits": [found[0] if found else "" for found in hits],
    }) + "\n")  # fmt: skip
