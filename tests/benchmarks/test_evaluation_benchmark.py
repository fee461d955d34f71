"""benchmarks/evaluation.py runs and prints what it measured."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "evaluation.py"


def test_the_benchmark_prints_seconds_and_memory() -> None:
    small = ["--n-gates", "2", "--n-datasets", "2", "--n-questions", "60", "--n-dev", "40", "--n-samples", "2"]
    command = [sys.executable, str(SCRIPT), *small, "--bootstrap-draws", "100"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.startswith("2 gates x 2 data sets x 60 questions, 2 samples, 100 draws, 2 processes:\n")
    found = re.search(r"^  ([\d.]+) s, ([\d.]+) GiB at most", out, re.MULTILINE)
    assert found is not None and float(found[1]) > 0 and 0 < float(found[2]) < 4
