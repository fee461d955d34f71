"""The sample store against a plain JSON Lines file: rows a second when writing, and what a resume costs.

Writes the same answers to both in the same batches (the file once without and once with an fsync after each batch,
which is what the store promises), then opens each in a fresh process, in turn, and prints seconds and ratios.

Examples:
  python benchmarks/store.py
  python benchmarks/store.py --n-questions 1000 --repeats 3
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pydantic import Field
from store_writing import append, fill, sample_sets

from kbtrain.config import Config, run_script
from kbtrain.store import SampleStore

STORE = "from kbtrain.store import SampleStore; n = len(SampleStore('{path}').done('main'))"
SCAN = """import json
with open('{path}') as file:
    n = len({{(row['question_id'], row['condition']) for row in map(json.loads, file)}})"""
TIMED = "import time; start = time.perf_counter()\n{code}\nprint(time.perf_counter() - start, n)"


class StoreBenchmarkConfig(Config):
    n_questions: int = Field(33_334, ge=1, description="question-conditions in the store")
    n_samples: int = Field(30, ge=1, description="answers of each")
    batch: int = Field(8, ge=1, description="question-conditions in one transaction: a batch of the sampler")
    repeats: int = Field(5, ge=1, description="times each is opened, in turn; the median counts")


def timed(code: str, path: Path) -> tuple[float, int]:
    """Seconds in a fresh process, interpreter start not counted, and the number of finished question-conditions."""
    run = [sys.executable, "-c", TIMED.format(code=code.format(path=path))]
    seconds, n = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    return float(seconds), int(n)


def main(config: StoreBenchmarkConfig) -> None:
    with tempfile.TemporaryDirectory() as folder:
        database, lines = Path(folder) / "samples.db", Path(folder) / "samples.jsonl"
        size = (config.n_questions, config.n_samples)
        written = {
            "store": fill(database, sample_sets(*size), config.batch),
            "JSON Lines": append(lines, sample_sets(*size), config.batch, durable=False),
            "JSON Lines, fsync": append(lines, sample_sets(*size), config.batch, durable=True),
        }
        seconds: dict[str, list[float]] = {"store": [], "jsonl": []}
        for _ in range(config.repeats):
            for name, code, path in (("store", STORE, database), ("jsonl", SCAN, lines)):
                second, n = timed(code, path)
                seconds[name].append(second)
                if n != config.n_questions:
                    raise AssertionError(f"{name} found {n} of {config.n_questions}")
        start = time.perf_counter()
        with SampleStore(database, read_only=True) as store:
            answers = sum(len(made.samples) for made in store.iterate("main"))
        read = time.perf_counter() - start
        sizes = {path.name: path.stat().st_size / 2**20 for path in (database, lines)}
    resume = {name: statistics.median(values) for name, values in seconds.items()}
    rows = config.n_questions * (config.n_samples + 1)
    print(f"{rows} rows in batches of {config.batch} question-conditions, rows a second:")
    for name, second in written.items():
        print(f"  {name}: {rows / second:.0f} ({written['JSON Lines, fsync'] / second:.2f} of JSON Lines with fsync)")
    print(f"{answers} answers read back in {read:.1f} s ({answers / read:.0f} a second)")
    print("  ".join(f"{name} {size:.0f} MiB" for name, size in sizes.items()))
    print(
        f"resume start-up: store {resume['store']:.3f} s, JSON Lines scan {resume['jsonl']:.3f} s,"
        f" ratio {resume['jsonl'] / resume['store']:.1f}"
    )


if __name__ == "__main__":
    run_script(main, StoreBenchmarkConfig, __doc__)
