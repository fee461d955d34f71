"""How often a threshold chosen on 150 dev questions loses to the better of never and always: with and without margin.

For each answering model, each data set and all of them: 300 times, 150 test questions choose, the others measure. A
loss is more than one point. Scores: OUT/scores of eval/evidence.py; no gate is fitted.

Examples:
  python benchmarks/threshold_margin.py --scores runs/evidence/scores --path \\
      "[$KBTRAIN_TEST_DATA/llm_outcomes/outcomes.jsonl, $KBTRAIN_TEST_DATA/llm_outcomes_more/outcomes.jsonl]"
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from pydantic import Field

from kbtrain import jsonl
from kbtrain.config import Config, run_script
from kbtrain.metrics.thresholds import MARGIN, Dev, cuts, gains_beyond_margin
from kbtrain.questions.data_sets.outcomes import read_judged


class ThresholdMarginConfig(Config):
    path: tuple[Path, ...] = Field(min_length=1, description="JSON Lines files of questions and verdicts")
    scores: Path = Field(Path("runs/evidence/scores"), description="folder of score files by model")
    gate: str = Field("features_by_set", description="gate within a data set")
    pooled: str = Field("stack_set", description="gate over all sets")
    dev: int = Field(150, ge=20, description="questions that choose")
    splits: int = Field(300, ge=1, description="re-splits of each cell")


def main(config: ThresholdMarginConfig) -> None:
    rows = [row for path in config.path for row in read_judged(path) if row.question.split == "test"]
    sets = np.array([row.question.dataset for row in rows])
    print(
        "| answers of | data set | without margin | with margin | better of never and always |\n|---|---|--:|--:|--:|"
    )
    for folder in sorted(config.scores.iterdir()):
        none, one = (
            np.array([float(row.right[folder.name, "published"][name]) for row in rows]) for name in ("none", "one")
        )
        for name in (*dict.fromkeys(sets.tolist()), "all"):
            here = np.ones(len(rows), dtype=bool) if name == "all" else sets == name
            file = folder / f"{config.pooled if name == 'all' else config.gate}.jsonl"
            known = {row["id"]: row["score"] for row in (json.loads(line) for _, line in jsonl.lines(file))}
            scores = np.array([known[row.question.id] for row in rows])[here]
            rng, lost = np.random.default_rng(1), {0.0: 0, MARGIN: 0, np.inf: 0}
            for _ in range(config.splits):
                order = rng.permutation(len(scores))
                dev, rest = order[: config.dev], order[config.dev :]
                before, after = none[here], one[here]
                table = Dev(scores[dev], before[dev], after[dev], after[dev] - before[dev])
                best = max(before[rest].mean(), after[rest].mean())
                for margin in lost:
                    gains = gains_beyond_margin(table, margin)
                    threshold = cuts(table.scores)[np.argmax(gains >= gains.max() - 1e-9)]
                    lost[margin] += np.where(scores[rest] > threshold, after[rest], before[rest]).mean() < best - 0.01
            print(f"| {folder.name} | {name} | " + " | ".join(f"{n / config.splits:.0%}" for n in lost.values()) + " |")


if __name__ == "__main__":
    run_script(main, ThresholdMarginConfig, __doc__)
