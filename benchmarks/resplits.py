"""What a gate's thresholds do on other splits of a run's dev and test questions.

Fewest searches with at most two or five points lost, and right answers. 300 times, as many questions as dev has choose
the threshold by their greedy answers, the others measure it. No gate is fitted: dev and test questions trained none.
The training questions help to choose the threshold, by held-out scores where the gate has them, as in
eval/end_to_end.py. The last row is the choice between never and always alone.

Examples:
  python benchmarks/resplits.py --run runs/demo --gate features_benefit
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.evaluation.gate_inputs import training_of, training_texts
from kbtrain.evaluation.outcomes import answers as correctness
from kbtrain.evaluation.run_folder import read_labels, read_run
from kbtrain.metrics.thresholds import Dev, choose, control
from kbtrain.report.words import percent, points

MOST_LOST, DELTA = (0.02, 0.05), 0.1  # shares of right answers against always searching, with probability 0.9
MISS = 0.01  # accuracy below the better of never and always that counts as a miss


class ResplitsConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder with scores")
    gate: str = Field("features_benefit", description="gate and key")
    splits: int = Field(300, ge=1, description="number of re-splits")


def resplit_rows(config: ResplitsConfig) -> list[list[str]]:
    """For each threshold: searches skipped, points against always and random searching, share that is more than a point
    below the better of never and always.

    Raises :class:`UserError` for a gate without scores.
    """
    run = read_run(config.run)
    _, by_question = run.stored.scores_of(config.gate)
    outcomes = [*run.dev.outcomes, *run.test.outcomes]
    scores = np.array([by_question[outcome.question_id] for outcome in outcomes])
    labels = read_labels(config.run / "labels.jsonl")[1]
    train = training_of([config.gate], run.stored, labels, training_texts(run.questions))[config.gate]
    known, of_train = correctness(outcomes, "greedy"), float(train.gains.sum())
    rng, n_dev = np.random.default_rng(0), len(run.dev.outcomes)
    measured: dict[str, list[tuple[float, ...]]] = {
        **{f"at most {100 * limit:g} points lost": [] for limit in MOST_LOST},
        "right answers": [],
        "never or always, no gate": [],
    }
    for _ in range(config.splits):
        order = rng.permutation(len(outcomes))
        dev, rest = order[:n_dev], order[n_dev:]
        table = Dev(scores[dev], known.llm[dev], known.rag[dev], np.zeros(n_dev), train)
        always = table.rag.sum() - table.llm.sum() + of_train > 1e-9
        thresholds = (
            *(control(table, limit, DELTA).threshold for limit in MOST_LOST),
            choose("best_accuracy", table).value,
            -np.inf if always else np.inf,
        )
        llm, rag = known.llm[rest], known.rag[rest]
        for values, threshold in zip(measured.values(), thresholds, strict=True):
            searched = scores[rest] > threshold
            right, share = float(np.where(searched, rag, llm).mean()), float(searched.mean())
            chance = llm.mean() + share * (rag.mean() - llm.mean())
            missed = right < max(llm.mean(), rag.mean()) - MISS - 1e-12
            values.append((1 - share, right - rag.mean(), right - chance, missed))
    rows = []
    for name, values in measured.items():
        skipped, vs_always, vs_random, missed = np.mean(values, axis=0)
        rows.append(
            [name, f"{percent(skipped)} %", points(vs_always), points(vs_random), f"{missed:.0%}".replace("%", " %")]
        )
    return rows


def main(config: ResplitsConfig) -> None:
    for row in resplit_rows(config):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    run_script(main, ResplitsConfig, __doc__)
