"""A KBM on mixed traffic beside the rule by source and `features`, from stored verdicts and scores of each question.

The model is the one of 1.5 billion parameters in docs/results/mixed.md, in fp32; `by_source` and `features_no_source`
are the gates in `mixed_traffic/gates/`. Dev has verdicts without passages alone, so each gate has the threshold at
which it searches for as many dev questions as the stored rule by source does.

Examples:
  python studies/kbm_row.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from mixed_traffic import table
from pydantic import Field

import kbtrain
from kbtrain.config import Config, run_script
from kbtrain.evaluation.decisions import GateInput
from kbtrain.evaluation.end_to_end import Settings, evaluate
from kbtrain.io import jsonl
from kbtrain.records import Outcome
from kbtrain.report.traffic import threshold_of

HERE = Path(__file__).parent / "mixed_traffic"


class KBMRowConfig(Config):
    scores: Path = Field(HERE / "kbm_scores.jsonl", description="a line a question: verdicts, prompt tokens, scores")


def main(config: KBMRowConfig) -> None:
    for row in kbm_rows(config.scores):
        print(f"| {' | '.join(row)} |")


def kbm_rows(path: Path) -> list[list[str]]:
    """The table under :data:`table.HEAD`: test questions with a verdict on both answers."""
    rows = [jsonl.value(line, path, number) for number, line in jsonl.lines(path)]
    dev = [row["scores"] for row in rows if row["split"] == "dev"]
    test = [row for row in rows if row["split"] == "test" and None not in (row["right"], row["right_with_passages"])]
    outcomes = [
        Outcome(row["question"], "test", None, row["right"], row["right_with_passages"], None, None, 0, 0)
        for row in test
    ]
    by_source = kbtrain.load_gate(HERE / "gates" / "by_source").threshold
    share = np.mean([scores["by_source"] > by_source for scores in dev])
    gates = []
    for name in dev[0]:
        of_dev, of_test = (
            np.array([scores[name] for scores in part]) for part in (dev, [row["scores"] for row in test])
        )
        gates.append(GateInput(name, of_dev, of_test, fixed=threshold_of(of_dev, float(share))))
    results, _ = evaluate([], outcomes, gates, Settings(tau_mastery=0.8))
    scores = {name: {row["question"]: row["scores"][name] for row in test} for name in dev[0]}
    tokens = np.array([row["prompt_tokens"] for row in test], dtype=np.float64).T
    return table.gate_rows(table.policies_of(outcomes, results, scores), tuple(tokens))


if __name__ == "__main__":
    run_script(main, KBMRowConfig, __doc__)
