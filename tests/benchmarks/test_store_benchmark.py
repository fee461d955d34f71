"""benchmarks/store.py runs and prints its ratio; a resume starts fast."""

from __future__ import annotations

import re
from pathlib import Path

from support import scripts

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "store.py"


def test_the_benchmark_prints_what_it_measured() -> None:
    out = scripts.run("benchmarks/store.py", "--n-questions", 3000, "--repeats", 1).stdout
    rates = dict(re.findall(r"^  (store|JSON Lines|JSON Lines, fsync): (\d+) \([\d.]+ of", out, flags=re.MULTILINE))
    assert out.startswith("93000 rows in batches of 8 question-conditions, rows a second:\n")
    assert len(rates) == 3 and all(int(rate) > 1000 for rate in rates.values())
    found = re.search(r"resume start-up: store ([\d.]+) s, JSON Lines scan ([\d.]+) s, ratio ([\d.]+)\n$", out)
    assert found is not None, out
    assert float(found[1]) < 3 and float(found[3]) > 0
