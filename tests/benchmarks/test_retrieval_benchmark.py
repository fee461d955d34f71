"""benchmarks/retrieval.py runs all three and prints what it measured."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "retrieval.py"


def test_the_benchmark_prints_a_row_for_each_peer() -> None:
    command = [
        sys.executable,
        str(SCRIPT),
        "--limit",
        "300",
        "--n-queries",
        "20",
        "--n-slow",
        "3",
        "--backend",
        "numpy",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, head, *rows = done.stdout.splitlines()
    assert first == "300 passages, 20 queries, k = 10" and head.split()[:2] == ["index", "s"]
    assert [row.split()[0] for row in rows] == ["ours", "bm25s", "rank_bm25"]
    for row in rows:
        seconds, _, queries, memory, *_, same = row.split()[1:]
        assert float(seconds) >= 0 and float(queries.replace(",", "")) > 0 and float(memory.replace(",", "")) > 10
        assert re.fullmatch(r"[\d.]+%", same)
    assert rows[0].endswith("100.0%")
