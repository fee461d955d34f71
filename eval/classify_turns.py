"""The table of gates on dialogue turns (RAGate, table 2): precision, recall, F1, AUC, AP and FDR on the test turns.

Reads scores.jsonl of each gate's folder, several folders of a gate being its seeds. Each threshold is the best F1 on
dev. Intervals: bootstrap over dialogues, the same draws for all gates. Writes RUN/classify_turns.json and .md.

Examples:
  python eval/classify_turns.py --run runs/ketod --compare encoder \\
      --gates "{always: [gates/always], structural: [gates/structural], encoder: [encoder0, encoder1, encoder2]}"
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation.turns import labelled_turns, run_of
from kbtrain.metrics.turns import classify_turns, compare
from kbtrain.provenance import write_atomically, write_meta
from kbtrain.report.tables import difference_table, gate_table


class ClassifyTurnsConfig(Config):
    run: Path = Field(Path("runs/ketod"), description="run folder with turns.jsonl")
    gates: dict[str, list[Path]] = Field(description="name: folders with scores.jsonl, one a seed; relative to the run")
    compare: str | None = Field(None, description="this gate minus each other one, paired")
    draws: int = Field(2000, ge=100, description="bootstrap draws")
    seed: int = Field(0, ge=0, description="of the draws")


def main(config: ClassifyTurnsConfig) -> None:
    started = time.time()
    if config.compare and config.compare not in config.gates:
        raise UserError(f"key 'compare': no gate '{config.compare}'; {did_you_mean(config.compare, config.gates)}")
    source = config.run / "turns.jsonl"
    turns = {split: labelled_turns(source, split) for split in ("dev", "test")}
    files = {name: [config.run / folder / "scores.jsonl" for folder in paths] for name, paths in config.gates.items()}
    runs = {name: [run_of(path, turns) for path in paths] for name, paths in files.items()}
    truth = np.array([bool(turn.label) for turn in turns["test"]])
    dialogues = [turn.dialogue_id for turn in turns["test"]]
    found, drawn = classify_turns(truth, dialogues, runs, config.draws, config.seed)
    differences = compare(drawn, config.compare, ("f1", "auroc", "average_precision")) if config.compare else []
    n = {"turns": len(truth), "positive": int(truth.sum()), "dialogues": len(set(dialogues)), "draws": config.draws}
    document = {"schema": 1, **n, "gates": list(map(asdict, found)), "differences": list(map(asdict, differences))}
    text = gate_table(found) + ("\n\n" + difference_table(differences) if differences else "")
    target = config.run / "classify_turns.json"
    write_atomically(target, json.dumps(document, indent=1, allow_nan=False) + "\n")
    write_atomically(target.with_suffix(".md"), "```\n" + text + "\n```\n")
    inputs = [source, *(path for paths in files.values() for path in paths)]
    write_meta(target, stage="classify_turns", config=config.model_dump(mode="json"), inputs=inputs, started=started)
    print(text)
    print(f"{n['turns']} test turns ({n['positive']} enriched) of {n['dialogues']} dialogues; thresholds: best F1 on "
          f"{len(turns['dev'])} dev turns -> {target}")  # fmt: skip


if __name__ == "__main__":
    run_script(main, ClassifyTurnsConfig, __doc__)
