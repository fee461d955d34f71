"""RAGate's prompt on KETOD: how well models that are asked order the turns, and what they say at 0.5, as in the paper.

Scores of the turns of every second test dialogue are stored beside this script: SmolLM2-135M and
Qwen2.5-Coder-1.5B (as in docs/results/mixed.md), both in fp32. Each came from `eval/score.py --only
ragate_prompt_zero_shot --splits "[test]" --dtype fp32`.

Examples:
  python data_gen/collect_turns.py --run runs/ketod --dataset ketod_lines --path ketod
  python studies/asked_turns.py --turns runs/ketod/turns.jsonl
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.metrics.significance import format_delta
from kbtrain.metrics.turns import SeedScores, classify_turns, compare
from kbtrain.records import TurnExample
from kbtrain.show import aligned

STORED = Path(__file__).with_suffix(".jsonl")
SHOWN = ("precision", "recall", "f1", "auroc")


class AskedTurnsConfig(Config):
    turns: Path = Field(Path("runs/ketod/turns.jsonl"), description="the turns with their labels")
    scores: Path = Field(STORED, description="a line a turn: its id, and the score of each model")


def main(config: AskedTurnsConfig) -> None:
    rows = [json.loads(line) for line in config.scores.read_text(encoding="utf-8").splitlines()]
    turns = {turn.id: turn for turn in jsonl.read(TurnExample, config.turns)}
    if missing := [row["turn"] for row in rows if row["turn"] not in turns]:
        raise UserError(f"{config.turns}: no turn '{missing[0]}', of which there is a score")
    truth = np.array([bool(turns[row["turn"]].label) for row in rows])
    models = {name: [SeedScores(np.array([row[name] for row in rows]), 0.5)] for name in rows[0] if name != "turn"}
    found, drawn = classify_turns(truth, [turns[row["turn"]].dialogue_id for row in rows], models)
    table = [[one.gate, f"{one.retrieved:.3f}", *(format_delta(one.metrics[name]) for name in SHOWN)] for one in found]
    print(f"{len(rows)} turns, {int(truth.sum())} of them enriched; intervals over dialogues")
    print(aligned(["model", "says yes", *SHOWN], table))
    for row in compare(drawn, found[-1].gate, ["auroc"]):
        print(f"{row.better} - {row.than}, AUC: {format_delta(row.difference)}")


if __name__ == "__main__":
    run_script(main, AskedTurnsConfig, __doc__)
