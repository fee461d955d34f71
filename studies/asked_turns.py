"""RAGate on KETOD with models of the same turns: its prompt (yes above 0.5, as in the paper) and its PEFT.

Scores of the turns of every second test dialogue are stored beside this script: of SmolLM2-135M and
Qwen2.5-Coder-1.5B (as in docs/results/mixed.md), all in fp32. The prompt's came from `eval/score.py --only
ragate_prompt_zero_shot --splits "[test]" --dtype fp32`. RAGate-PEFT was trained once, on the 536 turns of every fourth
training dialogue (72 enriched), 67 steps in 54 minutes on two cores; its threshold has the best F1 on the 106 turns of
every third dev dialogue. TURNS has these and the test turns:

  python recipes/train_ragate_peft.py --config ragate_peft_smollm2 --model MODEL --method lora --dtype fp32 \\
      --epochs 1 --gradient-accumulation-steps 1 --max-length 192 --select last \\
      --train TURNS --dev TURNS --test TURNS --output peft

The file asked_turns_all.jsonl has the larger model's answers to the prompt for all test turns, those of the other
dialogues in bf16.

Examples:
  python data_gen/collect_turns.py --run runs/ketod --dataset ketod_lines --path ketod
  python studies/asked_turns.py --turns runs/ketod/turns.jsonl
  python studies/asked_turns.py --turns runs/ketod/turns.jsonl --scores studies/asked_turns_all.jsonl
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
PEFT_THRESHOLD = 0.134962
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
    models = {
        name: [SeedScores(np.array([row[name] for row in rows]), PEFT_THRESHOLD if "PEFT" in name else 0.5)]
        for name in rows[0]
        if name != "turn"
    }
    found, drawn = classify_turns(truth, [turns[row["turn"]].dialogue_id for row in rows], models)
    table = [[one.gate, f"{one.retrieved:.3f}", *(format_delta(one.metrics[name]) for name in SHOWN)] for one in found]
    print(f"{len(rows)} turns, {int(truth.sum())} of them enriched; intervals over dialogues")
    print(aligned(["model", "says yes", *SHOWN], table))
    for row in compare(drawn, found[-1].gate, ["auroc"]):
        print(f"{row.better} - {row.than}, AUC: {format_delta(row.difference)}")


if __name__ == "__main__":
    run_script(main, AskedTurnsConfig, __doc__)
