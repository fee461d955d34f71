"""Measure how many searches each gate skips, and how many answers then differ from always searching, without gold.

Reads questions.jsonl, samples.db and the gates' scores of the run folder; writes fidelity.json. An answer differs where
the greedy answers with and without passages differ in meaning by the grading rule. Each threshold is chosen on dev:
the fewest searches at which at most max_change of the answers differ, guaranteed with probability 1 - delta for new
questions of the same kind, as long as dev chose nothing else of the gate. It is measured on test. Thresholds of gates
that learnt the label change are noted in their folders. Accepted answers are not read, and nothing here says that an
answer is right.

Examples:
  python eval/fidelity.py --run runs/logs
  python eval/fidelity.py --run runs/demo --max-change 0.02
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.evaluation.calibrate import card_threshold, warn_of_dependence
from kbtrain.evaluation.fidelity import (
    DELTA,
    MAX_CHANGE,
    Fidelity,
    fidelities,
    left_out_lines,
    predicts_change,
    read_changes,
)
from kbtrain.evaluation.results import stages
from kbtrain.evaluation.scores import stored_scores
from kbtrain.gates.thresholds_store import note
from kbtrain.io.provenance import file_sha256, write_result
from kbtrain.io.store import SampleStore
from kbtrain.report.words import gate_name, percent, percent_interval
from kbtrain.show import aligned


class FidelityConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder with questions.jsonl, samples.db and scores")
    max_change: float = Field(
        MAX_CHANGE, gt=0, lt=1, description="share of the answers that may differ from always searching"
    )
    delta: float = Field(DELTA, gt=0, lt=1, description="probability that the promise fails")
    replace_thresholds: bool = Field(False, description="note the thresholds in place of calibrated ones too")
    sampling_run: str = Field("main", description="name of the sampling run in samples.db")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "fidelity.json",)


def main(config: FidelityConfig) -> None:
    started = time.monotonic()
    scores_stored = stored_scores(config.run)
    changes = read_changes(config.run, config.sampling_run)
    with SampleStore(config.run / "samples.db", read_only=True) as store:
        sampling = store.run_meta(config.sampling_run)
    by_gate = fidelities(changes, scores_stored, scores_stored.by_gate, config.max_change, config.delta)
    warn_of_dependence(changes["dev"].questions)
    lines, kept_lines = list(left_out_lines(changes)), {}
    for gate, (choice, _) in by_gate.items():
        source = scores_stored.behind.get(gate)
        if source is None or not predicts_change(source):
            continue
        file, _ = scores_stored.scores_of(gate)
        hashes = {file_of.name: file_sha256(file_of) for file_of in (file, config.run / "questions.jsonl")}
        threshold = card_threshold(choice, changes["dev"].questions, hashes)
        entry = note(source.folder, source.name, threshold, config.replace_thresholds)
        if line := entry.line(gate, source.folder):
            lines.append(line)
            kept_lines |= {gate: line} if entry.kept else {}
    figures = [figure for _, figure in by_gate.values()]
    document = {
        "meta": {
            "date": time.strftime("%Y-%m-%d"),
            "split": "test",
            "sampling": dict(sampling),
            "kept_thresholds": kept_lines,
            "stages": stages(config.run, scores_stored.files),
        },
        "n_dev": len(changes["dev"].questions),
        "n": len(changes["test"].questions),
        "left_out": {split: dict(split_changes.left_out) for split, split_changes in changes.items()},
        "gates": [asdict(figure) for figure in figures],
    }
    files = [config.run / "questions.jsonl", config.run / "samples.db", *scores_stored.files]
    target = config.run / "fidelity.json"
    write_result(target, document, stage="fidelity", config=config, inputs=files, started=started)
    print("\n".join([*lines, table(figures)]))
    print(f"measured {len(figures)} gates on {figures[0].n} questions -> {target}")


def table(figures: list[Fidelity]) -> str:
    """Searches skipped and answers changed, most skipped on dev first."""
    head = ("gate", "threshold", "skipped, %", "answers that differ, %", "at random, %", "p")
    rows = [
        [gate_name(row.gate), f"{row.threshold:.4g}", f"{percent(row.skipped.mean)} {percent_interval(row.skipped)}",
         f"{percent(row.changed.mean)} {percent_interval(row.changed)}", percent(row.at_random), f"{row.p:.2g}"]
        for row in figures
    ]  # fmt: skip
    first = figures[0]
    return aligned(head, rows) + (
        f"\n{first.n} test questions; without any search {percent(first.changed_never)} % of the answers differ; "
        f"thresholds from {first.n_dev} dev questions: at most {percent(first.limit)} % differ, with probability "
        f"{1 - first.delta:g}"
    )


if __name__ == "__main__":
    run_script(main, FidelityConfig, __doc__)
