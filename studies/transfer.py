"""Transfer matrix: each gate's threshold chosen on one set and used on another, with a test for shifted scores.

--by dataset: from the dev questions of one data set to the test questions of another, within the runs. --by model: from
one run's model to the answers of another run's, on the same questions. A row marked "shifted" (Kolmogorov-Smirnov,
p < 0.01) says: choose another threshold there. Writes OUT.json and OUT.md.

Examples:
  python studies/transfer.py --runs "[runs/demo]"
  python studies/transfer.py --runs "[runs/qwen2_7b, runs/llama3_8b]" --by model --out runs/transfer_models
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from carried_thresholds import By, CarriedThreshold, between_models, by_dataset, transfer_matrix
from different_paths import DifferentPaths
from pydantic import Field

from kbtrain.config import run_script
from kbtrain.evaluation.outcomes import AccuracyKind, drawn_units
from kbtrain.evaluation.run_folder import ResampleConfig, StoredAnswersConfig, check_sampled, read_run, seen_note
from kbtrain.io.files import beside
from kbtrain.io.provenance import write_atomically, write_result
from kbtrain.metrics.thresholds import ThresholdConfig
from kbtrain.report.summary import bootstrap_units
from kbtrain.report.tables import Column, Table, as_markdown, as_text
from kbtrain.report.words import by_rule


class TransferConfig(ThresholdConfig, StoredAnswersConfig, ResampleConfig):
    runs: DifferentPaths = Field((Path("runs/demo"),), min_length=1, description="run folders")
    by: By = Field("dataset", description="dataset or model")
    gates: tuple[str, ...] = Field(
        ("kbm_mastery", "kbm_certainty", "prompt"), min_length=1, description="in this order"
    )
    accuracy: AccuracyKind = Field("greedy", description="greedy answers, or expected (samples)")
    out: Path = Field(Path("runs/transfer"), description="name of the two files, without their ends")

    def writes(self) -> tuple[Path, ...]:
        return (beside(self.out, ".json"),)


def main(config: TransferConfig) -> None:
    started = time.monotonic()
    runs = [read_run(path, config.sampling_run, config.allow_missing) for path in config.runs]
    check_sampled(runs, config.accuracy)
    rule, ratio, settings = config.threshold_rule, config.target_ratio, (config.accuracy, config.resample)
    if config.by == "model":
        transfers, without = between_models(runs, config.gates, rule, ratio, *settings)
    else:
        transfers, without = transfer_matrix(config.gates, by_dataset(runs, config.gates, *settings), rule, ratio)
    rule_text = by_rule(rule, "the source's dev questions")
    units = drawn_units(config.resample, [question for run in runs for question in run.test.questions])
    note = f"Thresholds {rule_text}. Intervals draw {bootstrap_units({'resample': units})}."
    table = layout(transfers, note + seen_note(runs, config.gates))
    target = beside(config.out, ".json")
    document = {"by": config.by, "cells": [dataclasses.asdict(cell) for cell in transfers]}
    write_atomically(beside(config.out, ".md"), as_markdown(table))
    inputs = [file for run in runs for file in run.files]
    write_result(target, document, stage="transfer", config=config, inputs=inputs, started=started)
    print(as_text(table))
    if without:
        print(f"no source, because there are no dev questions: {', '.join(without)}")
    shifted = sum(cell.shift.alarming for cell in transfers)
    print(f"{len(transfers)} transfers by {config.by}, scores shifted in {shifted} -> {target} and .md")


def layout(transfers: list[CarriedThreshold], note: str) -> Table:
    """One row a transfer."""
    columns = [Column("gate", "text"), Column("from", "text"), Column("to", "text"), Column("n", "count"),
               Column("accuracy"), Column("retrieved"), Column("vs random", "points"), Column("95 %", "text"),
               Column("KS", "decimal"), Column("p", "decimal"), Column("scores", "text")]  # fmt: skip
    rows = [
        [c.gate, c.source, c.target, c.n, c.accuracy, c.ratio, c.gain.mean,
         f"[{100 * c.gain.low:+.1f}, {100 * c.gain.high:+.1f}]", c.shift.statistic, c.shift.p_value,
         "shifted" if c.shift.alarming else "alike"]
        for c in transfers
    ]  # fmt: skip
    return Table("transfer", "Thresholds carried over", f"In percent. {note}", columns, rows)


if __name__ == "__main__":
    run_script(main, TransferConfig, __doc__)
