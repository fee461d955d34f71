"""A gate from logs with one answer a question against the gate from both answers: areas on test questions.

Reads a run folder with both answers to each question. Each training question is logged once: a gate in service (a score
that knows a little of the gain) searches for half of them, a coin decides a share, and the other answer is hidden. The
gate features is fitted to the log's labels, with weights cut at several limits, and to both answers. No model is
loaded; a few minutes.

Examples:
  python studies/one_arm.py --run runs/atlas
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
from published.run_verdicts import RunVerdicts
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.labeling.imported import benefit_labels, clipped_weights
from kbtrain.metrics.off_policy import effective_size
from kbtrain.runtime.progress import progress_bar

SIGNAL = 0.7  # of the gain in the score of the gate in service, beside noise of spread 1


class OneArmConfig(Config):
    run: Path = Field(description="run folder with both answers, and its BM25 index")
    explore: list[float] = Field([0.05, 0.2, 1.0], description="shares of the requests that a coin decides")
    max_weight: list[float] = Field([1.0, 5.0, 10.0, 50.0], description="limits of a row's weight; 1: no weights")
    repeats: int = Field(5, ge=2, description="logs of each share")
    seed: int = Field(0, ge=0, description="of the draws")


def main(config: OneArmConfig) -> None:
    data = RunVerdicts.read(config.run)
    none, one, train = data.llm, data.rag, data.pool

    def area(labels: Floats) -> float:
        """``labels``: probabilities that a search is needed."""
        return data.area(data.scores(train, 2 * labels - 1, data.test))

    both = area((1 + one[train] - none[train]) / 2)
    print(f"{len(train)} training questions, {len(data.test)} test questions; both answers: area {both:.3f}")
    print("| explored | weights up to | effective | area, one answer | against both |")
    print("|--:|--:|--:|--:|--:|")
    for explore in config.explore:
        found: dict[float, list[tuple[float, float]]] = defaultdict(list)
        for repeat in progress_bar(range(config.repeats), desc=f"{explore:.0%}", unit="logs"):
            rng = np.random.default_rng([config.seed, repeat])
            scores = SIGNAL * (one - none)[train] + rng.normal(size=len(train))
            decided = scores > np.median(scores)
            searched = np.where(rng.random(len(train)) < explore, rng.random(len(train)) < 0.5, decided)
            propensity = np.where(searched == decided, 1 - explore / 2, explore / 2)
            right = np.where(searched, one[train], none[train])
            for most in config.max_weight if explore < 1 else [2.0]:  # of a coin alone all weights are 2
                weights = clipped_weights(propensity, most)
                found[most].append((effective_size(weights), area(benefit_labels(searched, right, weights))))
        for most, pairs in found.items():
            (size, mean), half = np.mean(pairs, axis=0), 1.96 * np.std(pairs, axis=0, ddof=1)[1] / len(pairs) ** 0.5
            print(
                f"| {explore:.0%} | {most:g} | {size:.0f} | {mean:.3f} ± {half:.3f} | {mean - both:+.3f} |", flush=True
            )


if __name__ == "__main__":
    run_script(main, OneArmConfig, __doc__)
