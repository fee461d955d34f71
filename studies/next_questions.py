"""Learning curves of the gate features with questions chosen at random, near its threshold, or unlike each other.

Reads a run folder with both answers: its training and dev questions are the pool, its test questions measure. A random
start is labelled; each round chooses more by the current gate's scores, and the gate is fitted again. The threshold is
the median score of the pool. No model is loaded; minutes.

Examples:
  python studies/next_questions.py --run runs/atlas
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
from published.run_verdicts import RunVerdicts
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.report.audit import By, choose_next
from kbtrain.runtime.progress import progress_bar


class NextConfig(Config):
    run: Path = Field(description="run folder with both answers, and its BM25 index")
    start: int = Field(100, ge=20, description="questions of the random start")
    more: int = Field(100, ge=1, description="questions of each round")
    rounds: int = Field(2, ge=1, description="rounds")
    repeats: int = Field(5, ge=2, description="random starts")
    seed: int = Field(0, ge=0, description="of the draws")


def main(config: NextConfig) -> None:
    data = RunVerdicts.read(config.run)
    sizes = [config.start + config.more * i for i in range(config.rounds + 1)]
    print("| chosen by | " + " | ".join(f"{size} labelled" for size in sizes) + " |")
    print("|---|" + "--:|" * len(sizes))
    curves = {by: curve(data, by, config) for by in get_args(By)}
    for by, areas in curves.items():
        print(f"| {by} | {' | '.join(f'{area:.3f}' for area in areas.mean(axis=0))} |")
    for by in get_args(By)[1:]:
        gains = (curves[by] - curves["random"])[:, 1:].mean(axis=1)
        half = 1.96 * gains.std(ddof=1) / np.sqrt(len(gains))
        print(f"{by} minus random, mean of the rounds: {gains.mean():+.3f} ± {half:.3f} ({len(gains)} starts)")


def curve(data: RunVerdicts, by: By, config: NextConfig) -> Floats:
    """Oracle-normalised areas on the test questions, of each start and round."""
    found, texts = [], np.array([question.text for question in data.questions], dtype=object)
    for repeat in progress_bar(range(config.repeats), desc=by, unit="starts"):
        rng = np.random.default_rng([config.seed, repeat])
        known, areas = rng.permutation(data.pool)[: config.start], []
        for _ in range(config.rounds + 1):
            rest = np.setdiff1d(data.pool, known)
            gains = (data.rag - data.llm)[known]
            scores = data.scores(known.tolist(), gains, [*rest.tolist(), *data.test])
            areas.append(data.area(scores[len(rest) :]))
            of_pool = scores[: len(rest)]
            chosen = choose_next(texts[rest].tolist(), of_pool, config.more, by, float(np.median(of_pool)), rng)
            known = np.concatenate([known, rest[chosen]])
        found.append(areas)
    return np.array(found)


if __name__ == "__main__":
    run_script(main, NextConfig, __doc__)
