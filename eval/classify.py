"""Classification table: how well each gate's scores separate what needs retrieval from the rest, on the test split.

Questions: reads scores/ and outcomes.jsonl (written by end_to_end.py) of the run folder, thresholds by --threshold-rule
on dev. Dialogue turns (a run folder with turns.jsonl; RAGate, table 2): precision, recall, F1, AUC, AP and FDR at the
threshold with the best F1 on dev, with bootstrap intervals over dialogues and the same draws for all gates. --gates
names rows; several scores of a gate are its seeds. Writes classify.json, for turns also classify.md.

Examples:
  kbtrain run classify --run runs/demo
  kbtrain run classify --run runs/demo --threshold-rule best_f1
  kbtrain run classify --run runs/ketod --compare encoder \\
      --gates "{always: [always], dialogue_state: [dialogue_state], encoder: [encoder0, encoder1, encoder2]}"
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
from pydantic import Field

from kbtrain.config import run_script
from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation.decisions import DevRule, classify_gates
from kbtrain.evaluation.gate_inputs import in_report_order, scored_gates, training_in
from kbtrain.evaluation.run_folder import check_outcomes_labelled, read_labels, read_outcomes
from kbtrain.evaluation.scores import (
    read_labelled_turns,
    score_file,
    seed_scores,
    seen_in_files,
    stored_scores,
)
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import write_atomically, write_result
from kbtrain.metrics.thresholds import ThresholdConfig
from kbtrain.metrics.turns import classify_turns, compare
from kbtrain.report.tables import difference_table, gate_table, question_table
from kbtrain.report.words import by_rule

OF_QUESTIONS = ("scores", "tau_mastery", "threshold_rule", "target_ratio")


class ClassifyConfig(ThresholdConfig):
    run: Path = Field(Path("runs/demo"), description="run folder")
    scores: Path | None = Field(None, description="questions: another score file; null: the files in RUN/scores")
    tau_mastery: float | None = Field(
        None, ge=0, le=1, description="mastery above which a question is known; as in the labels"
    )
    gates: dict[str, list[Path]] = Field(
        {}, description="turns: name: gates' names or folders, one per seed; null: all in RUN/scores"
    )
    compare: str | None = Field(None, description="turns: gate to compare with all others, in pairs")
    draws: int = Field(2000, ge=100, description="turns: bootstrap draws")
    seed: int = Field(0, ge=0, lt=2**31, description="turns: of the draws")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "classify.json",)


def main(config: ClassifyConfig) -> None:
    if path_exists(config.run / "turns.jsonl"):
        turns(config)
    elif ignored := sorted({"gates", "compare", "draws", "seed"} & config.model_fields_set):
        raise UserError(f"{config.run}: questions; key '{ignored[0]}' is for turns")
    else:
        questions(config)


def questions(config: ClassifyConfig) -> None:
    """A table of gates on questions, for each definition of "retrieval needed"."""
    started = time.monotonic()
    stored_gates = stored_scores(config.run, only=config.scores)
    inputs = [*stored_gates.files, config.run / "outcomes.jsonl", config.run / "labels.jsonl"]
    outcomes = read_outcomes(config.run)
    dev, test = ([o for o in outcomes if o.split == split] for split in ("dev", "test"))
    if not test:
        raise UserError(f"{inputs[-2]}: no test question; run eval/end_to_end.py first")
    tau = config.tau_mastery
    if tau is None:
        check_outcomes_labelled(config.run)
        tau = read_labels(inputs[-1])[0].tau_mastery
    ids = ([outcome.question_id for outcome in part] for part in (dev, test))
    gates, rule = in_report_order(scored_gates(stored_gates, *ids)), config.threshold_rule
    if rule == "best_accuracy":
        check_outcomes_labelled(config.run)
        training = training_in(config.run, None, [gate.name for gate in gates], stored_gates)
        gates = [dataclasses.replace(gate, train=training[gate.name]) for gate in gates]
    classified = classify_gates(dev, test, gates, tau_mastery=tau, cut=DevRule(rule, config.target_ratio))
    document = {"tau_mastery": tau, "gates": [dataclasses.asdict(gate) for gate in classified]}
    target_file = config.run / "classify.json"
    write_result(target_file, document, stage="classify", config=config, inputs=inputs, started=started)
    print(question_table(classified))
    print(
        f"classified {len(test)} test questions by {len(classified)} gates, thresholds {by_rule(rule)} -> {target_file}"
    )


def turns(config: ClassifyConfig) -> None:
    """A table of gates on dialogue turns, with intervals, and differences if asked for."""
    started, source = time.monotonic(), config.run / "turns.jsonl"
    ignored = next((key for key in OF_QUESTIONS if key in config.model_fields_set), None)
    if ignored is not None:
        raise UserError(f"{config.run}: turns; key '{ignored}' is for questions, thresholds of turns are dev's best F1")
    gates = config.gates or {path.stem: [Path(path.stem)] for path in stored_scores(config.run).files}
    if config.compare and config.compare not in gates:
        raise UserError(f"key 'compare': no gate '{config.compare}'; {did_you_mean(config.compare, gates)}")
    rows = read_labelled_turns(source, "dev", "test")
    files = {name: [score_file(config.run, path) for path in paths] for name, paths in gates.items()}
    runs = {name: [seed_scores(path, rows) for path in paths] for name, paths in files.items()}
    truth = np.array([bool(turn.label) for turn in rows["test"]])
    if len(set(truth)) == 1:
        raise UserError(f"{source}: all {len(truth)} test turns are of one class, so there is nothing to tell apart")
    dialogues = [turn.dialogue_id for turn in rows["test"]]
    classified, draws_of = classify_turns(truth, dialogues, runs, config.draws, config.seed)
    differences = compare(draws_of, config.compare, ("f1", "auroc", "average_precision")) if config.compare else []
    n = {"turns": len(truth), "positive": int(truth.sum()), "dialogues": len(set(dialogues)), "draws": config.draws}
    seen_lines = seen_in_files(files)
    document = {**n, "gates": list(map(dataclasses.asdict, classified)), "seen": seen_lines,
                "differences": list(map(dataclasses.asdict, differences))}  # fmt: skip
    text = "\n".join([gate_table(classified), *seen_lines]) + (
        "\n\n" + difference_table(differences) if differences else ""
    )
    target_file = config.run / "classify.json"
    inputs = [source, *(path for paths in files.values() for path in paths)]
    write_result(
        target_file, document, stage="classify", config=config, inputs=list(dict.fromkeys(inputs)), started=started
    )
    write_atomically(target_file.with_suffix(".md"), "```\n" + text + "\n```\n")
    print(text)
    print(f"{n['turns']} test turns ({n['positive']} enriched) of {n['dialogues']} dialogues; thresholds: best F1 on "
          f"{len(rows['dev'])} dev turns -> {target_file}")  # fmt: skip


if __name__ == "__main__":
    run_script(main, ClassifyConfig, __doc__)
