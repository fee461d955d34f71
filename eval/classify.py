"""Classification table: how well each gate's scores tell the questions that need retrieval from the others.

Reads scores.jsonl and outcomes.jsonl (written by end_to_end.py) of the run folder; writes classify.json.

Examples:
  python eval/classify.py --run runs/demo
  python eval/classify.py --run runs/demo --threshold-rule best_f1
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from pydantic import Field

from kbtrain import jsonl
from kbtrain.config import run_script
from kbtrain.errors import UserError
from kbtrain.evaluation.classify import GateClassification, classify_gates
from kbtrain.evaluation.gate_inputs import in_report_order, scored
from kbtrain.evaluation.run_folder import read_labels, read_scores
from kbtrain.metrics.thresholds import ThresholdConfig
from kbtrain.provenance import read_meta, write_result
from kbtrain.records import Outcome
from kbtrain.text_table import aligned, number


class ClassifyConfig(ThresholdConfig):
    """Settings of this script."""

    run: Path = Field(Path("runs/demo"), description="run folder")
    scores: Path | None = Field(None, description="another score file; without it RUN/scores.jsonl")
    tau_mastery: float | None = Field(None, ge=0, le=1, description="mastery above it is known; as in the labels")


def main(config: ClassifyConfig) -> None:
    """Read, classify, write, show."""
    started = time.time()
    scores = config.scores or config.run / "scores.jsonl"
    inputs = [scores, config.run / "outcomes.jsonl", config.run / "labels.jsonl"]
    outcomes = list(jsonl.read(Outcome, inputs[1]))
    dev, test = ([o for o in outcomes if o.split == split] for split in ("dev", "test"))
    if not test:
        raise UserError(f"{inputs[1]}: no test question; run eval/end_to_end.py first")
    tau = read_labels(inputs[2])[0].tau_mastery if config.tau_mastery is None else config.tau_mastery
    gates = in_report_order(scored(read_scores(scores), read_meta(scores), dev, test, scores))
    rule, target = config.threshold_rule, config.target_ratio
    found = classify_gates(dev, test, gates, tau_mastery=tau, rule=rule, target_ratio=target)
    document = {"tau_mastery": tau, "gates": [dataclasses.asdict(gate) for gate in found]}
    out = config.run / "classify.json"
    write_result(out, document, stage="classify", config=config, inputs=inputs, started=started)
    print(table(found))
    print(f"classified {len(test)} test questions by {len(found)} gates, thresholds by rule '{rule}' on dev -> {out}")


def table(found: list[GateClassification]) -> str:
    """One row per gate and definition of "retrieval needed"."""
    head = ("gate", "positive", "share", "retrieved", "precision", "recall", "F1", "FDR", "AUC", "AP", "Brier", "ECE",
            "temperature", "isotonic")  # fmt: skip
    rows = []
    for gate in found:
        for d in gate.definitions:
            values = (d.n_positive / d.n, gate.retrieval_ratio, d.precision, d.recall, d.f1, d.fdr, d.auroc)
            made = gate.calibration.get(d.positive)
            kinds = (made.raw, made.at_temperature, made.isotonic) if made else (None, None, None)
            errors = [kinds[0].brier if kinds[0] else None, *(kind.ece if kind else None for kind in kinds)]
            rows.append([gate.gate, d.positive, *map(number, (*values, d.average_precision, *errors))])
    return aligned(head, rows) + "\nECE as scored, and after a temperature or isotonic regression fitted on dev"


if __name__ == "__main__":
    run_script(main, ClassifyConfig, __doc__)
