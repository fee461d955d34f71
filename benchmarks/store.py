"""How long does a resume take to find out what is done? The sample store against a plain JSON Lines file.

Generates both with the same answers, then opens each in a fresh process, in turn, and prints seconds and ratios.

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
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from kbtrain import jsonl
from kbtrain.config import Config, run_script
from kbtrain.records import Sample, SampleSet
from kbtrain.store import SampleStore

BATCH = 200
STORE = "from kbtrain.store import SampleStore; n = len(SampleStore('{path}').done('main'))"
SCAN = """import json
with open('{path}') as file:
    n = len({{(row['question_id'], row['condition']) for row in map(json.loads, file)}})"""
TIMED = "import time; start = time.perf_counter()\n{code}\nprint(time.perf_counter() - start, n)"


class StoreBenchmarkConfig(Config):
    n_questions: int = Field(33_334, ge=1, description="question-conditions in the store")
    n_samples: int = Field(30, ge=1, description="answers of each")
    repeats: int = Field(5, ge=1, description="times each is opened, in turn; the median counts")


def sample_sets(config: StoreBenchmarkConfig) -> Iterator[SampleSet]:
    """Answers of realistic length."""
    for i in range(config.n_questions):
        answers = (
            Sample(j, f"Answer {i * 31 + j}, and why it is so.", 12, "eos", -3.25) for j in range(config.n_samples)
        )
        yield SampleSet(f"atlas-capital-{i:06d}", "llm", tuple(answers), Sample(-1, "Answer", 3, "eos", -0.5), 64)


def fill(config: StoreBenchmarkConfig, path: Path) -> float:
    """Seconds to store everything, one durable transaction per batch."""
    start, batch = time.perf_counter(), []
    with SampleStore(path) as store:
        store.begin("main", {})
        for made in sample_sets(config):
            batch.append(made)
            if len(batch) == BATCH:
                store.put("main", batch)
                batch = []
        store.put("main", batch)
    return time.perf_counter() - start


def timed(code: str, path: Path) -> tuple[float, int]:
    """Seconds in a fresh process, interpreter start not counted, and the number of finished question-conditions."""
    run = [sys.executable, "-c", TIMED.format(code=code.format(path=path))]
    seconds, n = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    return float(seconds), int(n)


def main(config: StoreBenchmarkConfig) -> None:
    with tempfile.TemporaryDirectory() as folder:
        database, lines = Path(folder) / "samples.db", Path(folder) / "samples.jsonl"
        stored = fill(config, database)
        jsonl.write(lines, sample_sets(config))
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
    print(f"{answers} answers: stored in {stored:.1f} s, read back in {read:.1f} s ({answers / read:.0f} a second)")
    print("  ".join(f"{name} {size:.0f} MiB" for name, size in sizes.items()))
    print(
        f"resume start-up: store {resume['store']:.3f} s, JSON Lines scan {resume['jsonl']:.3f} s,"
        f" ratio {resume['jsonl'] / resume['store']:.1f}"
    )


if __name__ == "__main__":
    run_script(main, StoreBenchmarkConfig, __doc__)
