"""Evaluating many gates on many data sets from stored answers: seconds, and memory of all processes together.

Makes a store of random answers for each data set (not timed), then reads, grades and evaluates all of them: thresholds
by every rule on dev, accuracy and ratio with intervals, random gates, areas, comparisons. One process a core.

Examples:
  python benchmarks/evaluation.py
  python benchmarks/evaluation.py --n-samples 30 --workers 2
"""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field

from kbtrain import jsonl
from kbtrain.config import Config, run_script
from kbtrain.evaluation.end_to_end import Settings, evaluate
from kbtrain.evaluation.run_folder import gate_input, read_run
from kbtrain.provenance import peak_rss_mb
from kbtrain.records import GateScore, Question, Sample, SampleSet, Split
from kbtrain.store import SampleStore

WORDS = ["yes", "no", "Paris", "the Seine", "1066", "I do not know", "maybe", "Rome"]


class EvaluationBenchmarkConfig(Config):
    """Settings of this script."""

    n_gates: int = Field(10, ge=1, description="gates")
    n_datasets: int = Field(11, ge=1, description="data sets, each in a run folder of its own")
    n_questions: int = Field(3_000, ge=10, description="test questions of each")
    n_dev: int = Field(500, ge=10, description="dev questions of each")
    n_samples: int = Field(0, ge=0, description="sampled answers beside the greedy one; 0: greedy accuracy only")
    bootstrap_draws: int = Field(10_000, ge=100, description="resamples of the questions")
    workers: int = Field(2, ge=1, description="processes")


@dataclass(frozen=True)
class Done:
    """What one data set took: seconds of reading and of evaluating; the process's peak memory so far, in MiB."""

    read: float
    evaluated: float
    process: int
    peak: float


def make(folder: Path, number: int, config: EvaluationBenchmarkConfig) -> None:
    """A run folder of random answers: retrieval helps more often than it harms, scores know a little of it."""
    rng = random.Random(number)
    sizes: dict[Split, int] = {"dev": config.n_dev, "test": config.n_questions}
    questions = [
        Question(f"{split}-{i}", f"What is {split} fact {i} of set {number}?", ("yes",), split, f"set{number}")
        for split, size in sizes.items()
        for i in range(size)
    ]
    chances = [(rng.random() ** 2, 0.25 + 0.6 * rng.random()) for _ in questions]
    with SampleStore(folder / "samples.db") as store:
        store.begin("main", {"model": "made-up"})
        for start in range(0, len(questions), 500):
            part = list(zip(questions, chances, strict=True))[start : start + 500]
            store.put("main", [answers(rng, q, c, chance[c == "rag"], config.n_samples)
                               for q, chance in part for c in ("llm", "rag")])  # fmt: skip
    jsonl.write(folder / "questions.jsonl", questions)
    scores = (
        GateScore(question.id, f"gate{gate}", 1 - llm + rng.gauss(0, 0.1 + 0.1 * gate))
        for gate in range(config.n_gates)
        for question, (llm, _) in zip(questions, chances, strict=True)
    )
    jsonl.write(folder / "scores.jsonl", scores)


def answers(rng: random.Random, question: Question, condition: str, chance: float, n: int) -> SampleSet:
    """A greedy answer and ``n`` sampled ones, right with this chance."""
    texts = ["yes" if rng.random() < chance else rng.choice(WORDS[1:]) for _ in range(n + 1)]
    samples = tuple(Sample(i, text, 3, "eos", -1.0) for i, text in enumerate(texts[1:]))
    kind = "rag" if condition == "rag" else "llm"
    return SampleSet(question.id, kind, samples, Sample(-1, texts[0], 4, "eos", -1.0), 20)


def run(folder: Path, draws: int) -> Done:
    """Read, grade and evaluate one run folder."""
    start = time.perf_counter()
    stored = read_run(folder)
    gates = [gate_input([stored], gate) for gate in stored.scores]
    read = time.perf_counter()
    settings = Settings(tau_mastery=0.5, rule="ratio", bootstrap_draws=draws)
    results, _ = evaluate(stored.dev.outcomes, stored.test.outcomes, gates, settings)
    if not all(np.isfinite(result.delta_vs_random.high) for result in results):
        raise AssertionError("an interval is not finite")
    return Done(read - start, time.perf_counter() - read, os.getpid(), peak_rss_mb())


def main(config: EvaluationBenchmarkConfig) -> None:
    """Make, run, say."""
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place) / f"set{number}" for number in range(config.n_datasets)]
        for number, folder in enumerate(folders):
            make(folder, number, config)
        start = time.perf_counter()
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(config.workers, mp_context=spawn) as pool:
            done = list(pool.map(run, folders, [config.bootstrap_draws] * len(folders)))
        seconds = time.perf_counter() - start
    peaks = {one.process: max(other.peak for other in done if other.process == one.process) for one in done}
    memory = (sum(peaks.values()) + peak_rss_mb()) / 1024
    print(
        f"{config.n_gates} gates x {config.n_datasets} data sets x {config.n_questions} questions, "
        f"{config.n_samples} samples, {config.bootstrap_draws} draws, {config.workers} processes:"
    )
    print(f"  {seconds:.1f} s, {memory:.2f} GiB at most in all processes together")
    print(f"  of it, summed over the processes: reading and grading {sum(one.read for one in done):.1f} s, "
          f"evaluating {sum(one.evaluated for one in done):.1f} s")  # fmt: skip


if __name__ == "__main__":
    run_script(main, EvaluationBenchmarkConfig, __doc__)
