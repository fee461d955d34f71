"""What a gate's two thresholds do on other splits of a run's dev and test questions.

300 times, as many questions as dev has choose both thresholds by their greedy answers, the others measure them. No gate
is fitted: neither dev nor test questions trained one.

Examples:
  python benchmarks/resplits.py --run runs/demo --gate stack_benefit
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.evaluation.outcomes import answers as correctness
from kbtrain.evaluation.run_folder import read_run
from kbtrain.metrics.thresholds import Dev, choose, fewest_searches

LOSS = 0.02  # of always searching's accuracy, which the threshold for few searches may cost on dev


class ResplitsConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder with scores")
    gate: str = Field("stack_benefit", description="gate and key")
    splits: int = Field(300, ge=1, description="number of re-splits")


def resplit_rows(config: ResplitsConfig) -> list[list[str]]:
    """For each threshold: searches skipped, points against always and random searching, share that loses over 2 points.

    Raises :class:`UserError` for a gate without scores.
    """
    run = read_run(config.run)
    if config.gate not in run.scores:
        raise UserError(f"gate '{config.gate}' has no scores in {config.run}; gates: {', '.join(sorted(run.scores))}")
    outcomes = [*run.dev.outcomes, *run.test.outcomes]
    scores = np.array([run.scores[config.gate][outcome.question_id] for outcome in outcomes])
    known = correctness(outcomes, "greedy")
    rng, n_dev = np.random.default_rng(0), len(run.dev.outcomes)
    measured: dict[str, list[tuple[float, float, float]]] = {"right answers": [], "few searches": []}
    for _ in range(config.splits):
        order = rng.permutation(len(outcomes))
        dev, rest = order[:n_dev], order[n_dev:]
        table = Dev(scores[dev], known.llm[dev], known.rag[dev], np.zeros(n_dev))
        llm, rag = known.llm[rest], known.rag[rest]
        for name, threshold in (
            ("right answers", choose("best_accuracy", table).value),
            ("few searches", fewest_searches(table, LOSS)),
        ):
            searched = scores[rest] > threshold
            right, share = np.where(searched, rag, llm).mean(), searched.mean()
            chance = llm.mean() + share * (rag.mean() - llm.mean())
            measured[name].append((1 - share, right - rag.mean(), right - chance))
    rows = []
    for name, values in measured.items():
        skipped, always, random = np.mean(values, axis=0) * 100
        lost = np.mean([value[1] < -LOSS for value in values])
        rows.append([name, f"{skipped:.1f} %", f"{always:+.1f}", f"{random:+.1f}", f"{lost:.0%} of the re-splits"])
    return rows


def main(config: ResplitsConfig) -> None:
    for row in resplit_rows(config):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    run_script(main, ResplitsConfig, __doc__)
