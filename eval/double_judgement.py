"""KBM's double judgement from stored scores (section 5.4): passages that do not lead to an answer are dropped.

Reads a run's questions.jsonl, samples.db, scores/ and scores_reference.jsonl (eval/score_reference.py); no model runs
here. Both thresholds are chosen on dev (best_accuracy also reads training questions for the first one). Writes
RUN/double_judgement.json and .md.

Examples:
  kbtrain run double_judgement --config kbm_double_judgement
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import Field

from kbtrain.config import run_script
from kbtrain.errors import UserError, at
from kbtrain.evaluation.decisions import DevRule
from kbtrain.evaluation.double_judgement import NO_TRAINING, DoubleJudgement, judge_double
from kbtrain.evaluation.gate_inputs import training_in
from kbtrain.evaluation.outcomes import AccuracyKind, drawn_units
from kbtrain.evaluation.run_folder import (
    ResampleConfig,
    RunFolder,
    StoredAnswersConfig,
    check_sampled,
    read_run,
    seen_note,
)
from kbtrain.evaluation.scores import read_scores
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import check_current, meta_of, write_atomically, write_result
from kbtrain.metrics.thresholds import ThresholdConfig
from kbtrain.report.summary import bootstrap_units
from kbtrain.report.tables import Column, Table, Value, as_markdown, as_text
from kbtrain.report.words import by_rule, points_interval


class DoubleJudgementConfig(ThresholdConfig, StoredAnswersConfig, ResampleConfig):
    run: Path = Field(Path("runs/demo"), description="run folder")
    gates: tuple[str, ...] = Field(("kbm_mastery", "kbm_certainty"), description="gates with second scores, in order")
    accuracy: AccuracyKind = Field("greedy", description="greedy answers, or expected (samples)")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "double_judgement.json",)


def main(config: DoubleJudgementConfig) -> None:
    started, (target,) = time.monotonic(), config.writes()
    run = read_run(config.run, config.sampling_run, config.allow_missing)
    check_sampled([run], config.accuracy)
    cut = DevRule(config.threshold_rule, config.target_ratio, config.accuracy)
    rows = judged_twice(config, run, cut)
    units = drawn_units(config.resample, run.test.questions)
    note = f"Model: {run.model}; thresholds {by_rule(cut.rule)}. Intervals draw {bootstrap_units({'resample': units})}."
    table = double_judgement_table(rows, note + seen_note([run], config.gates))
    write_atomically(target.with_suffix(".md"), as_markdown(table))
    inputs = [*run.files, config.run / "scores_reference.jsonl"]
    write_result(target, asdict(table), stage="double_judgement", config=config, inputs=inputs, started=started)
    print("\n".join([as_text(table), *run.notes]))
    print(f"double judgement: {len(rows)} gates on {len(run.test.questions)} test questions -> {target} and .md")


def judged_twice(config: DoubleJudgementConfig, run: RunFolder, cut: DevRule) -> list[DoubleJudgement]:
    """Each gate that has second scores. Raises :class:`UserError` where none has."""
    path = config.run / "scores_reference.jsonl"
    sources = (config.run / name for name in ("questions.jsonl", "evidence.jsonl"))
    check_current(path, *sources, command="eval/score_reference.py")
    again, made_by = read_scores(path), meta_of(path).get("key", {}).get("kbm")
    gates = [gate for gate in config.gates if gate in again]
    if not gates:
        raise UserError(f"{path}: no scores of {', '.join(config.gates)}")
    if skipped := [gate for gate in config.gates if gate not in again]:
        print(f"skipped, no scores in {path}: {', '.join(skipped)}")
    for gate in gates:
        first, _ = run.stored.scores_of(gate)
        if made_by not in (None, meta_of(first).get("key", {}).get("gate", made_by)):
            raise UserError(f"{at(path)}: made by another gate than {first}; run eval/score_reference.py again")
    labels = path_exists(config.run / "labels.jsonl")
    training = training_in(config.run, gates, run.stored) if labels and cut.rule == "best_accuracy" else {}
    return [judge_double(run, again, gate, cut, config.resample, training.get(gate, NO_TRAINING)) for gate in gates]


def double_judgement_table(rows: Sequence[DoubleJudgement], note: str) -> Table:
    """Accuracy and tokens read of LLM Only, All RAG, one judgement, two, and chance (KBM, figure 8)."""
    columns = [Column("gate", "text"), Column("way", "text"), Column("n", "count"),
               Column("accuracy"), Column("vs Rnd", "points"), Column("95 %", "text"), Column("searched"),
               Column("passed on"), Column("tokens read", "count"), Column("of All RAG's")]  # fmt: skip
    body: list[list[Value]] = [
        [row.gate, way.name, row.n, way.accuracy, way.gain.mean, points_interval(way.gain), way.searched,
         way.passed_on, way.tokens, way.tokens / everything if way.tokens is not None and everything else None]
        for row in rows
        for everything in [row.ways[1].tokens]
        for way in row.ways
    ]  # fmt: skip
    second = "; ".join(
        f"{row.gate} {100 * row.second_gain.mean:+.1f} {points_interval(row.second_gain)}" for row in rows
    )
    text = (
        "In percent; tokens read: prompt tokens of the answers, all questions together. Passed on: share of questions "
        "whose chunks reach the answering model; vs Rnd: accuracy minus that of as many chunks "
        f"passed on at random (row random: as many as by two judgements). The second judgement's gain over one: "
        f"{second}."
    )
    return Table("double_judgement", "Double judgement (KBM, figure 8)", f"{text} {note}", columns, body)


if __name__ == "__main__":
    run_script(main, DoubleJudgementConfig, __doc__)
