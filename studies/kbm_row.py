"""KBMs on mixed traffic beside the rule by source and `features`, from stored verdicts and scores of each question.

The model is the one of 1.5 billion parameters in docs/results/mixed.md, in fp32. Thresholds are chosen on dev as there:
the fewest searches for which dev promises, with probability 0.9, to lose at most five points.

Examples:
  python studies/kbm_row.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from mixed_traffic import table
from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.evaluation.decisions import GateInput
from kbtrain.evaluation.end_to_end import Settings, evaluate
from kbtrain.io import jsonl
from kbtrain.records import Outcome, Split


class KBMRowConfig(Config):
    scores: Path = Field(
        Path(__file__).parent / "mixed_traffic" / "kbm_scores.jsonl",
        description="a line a question: verdicts, prompt tokens, scores",
    )


def main(config: KBMRowConfig) -> None:
    for row in kbm_rows(config.scores):
        print(f"| {' | '.join(row)} |")


def kbm_rows(path: Path) -> list[list[str]]:
    """The table under :data:`table.HEAD`: test questions with a verdict on both answers."""
    rows = [jsonl.value(line, path, number) for number, line in jsonl.lines(path)]
    dev, test = judged(rows, "dev"), judged(rows, "test")
    gates = [
        GateInput(name, *(np.array([row["scores"][name] for row in part]) for part in (dev, test)))
        for name in test[0]["scores"]
    ]
    outcomes = outcomes_of(test)
    results, _ = evaluate(outcomes_of(dev), outcomes, gates, Settings(tau_mastery=0.8, rule="max_loss"))
    scores = {gate.name: {row["question"]: row["scores"][gate.name] for row in test} for gate in gates}
    tokens = np.array([row["prompt_tokens"] for row in test], dtype=np.float64).T
    return table.gate_rows(table.policies_of(outcomes, results, scores), tuple(tokens))


def judged(rows: list[dict[str, Any]], split: Split) -> list[dict[str, Any]]:
    return [row for row in rows if row["split"] == split and None not in (row["right"], row["right_with_passages"])]


def outcomes_of(rows: list[dict[str, Any]]) -> list[Outcome]:
    return [
        Outcome(row["question"], row["split"], None, row["right"], row["right_with_passages"], None, None, 0, 0)
        for row in rows
    ]


if __name__ == "__main__":
    run_script(main, KBMRowConfig, __doc__)
