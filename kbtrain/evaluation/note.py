"""Thresholds of an evaluation in the folders of the gates that made the scores, and those noted there before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation.calibrate import CalibrationGoal, calibrate
from kbtrain.evaluation.decisions import GateInput, dev_table
from kbtrain.evaluation.end_to_end import Settings
from kbtrain.evaluation.outcomes import entities_of
from kbtrain.evaluation.results import GateResult
from kbtrain.evaluation.run_folder import StoredScores
from kbtrain.gate_folder import Threshold, read_gate_json
from kbtrain.gates.noted import Source, missing_reason, note, source_of
from kbtrain.gates.question_shift import dev_questions
from kbtrain.gates.seakr.gate import scale_of
from kbtrain.metrics.calibration import kept_scores
from kbtrain.provenance import file_sha256
from kbtrain.records import Outcome, Question


def sources(run: Path, stored: StoredScores) -> dict[str, Source]:
    """The gate behind each score of a run folder, as far as the score files name it."""
    found = {gate: source_of(run, stored.meta, gate) for gate in stored.by_gate}
    return {gate: source for gate, source in found.items() if source is not None}


def with_noted(gates: Sequence[GateInput], found: Mapping[str, Source], given: Mapping[str, float]) -> list[GateInput]:
    """The gates with the lowest score they can give and the threshold of rule ``given``: one that is named, else the
    one noted in the gate's folder.

    Raises :class:`UserError` for a name that no gate has, and for a threshold under its gate's floor.
    """
    names = {gate.name for gate in gates}
    unknown = next((name for name in given if name not in names), None)
    if unknown is not None:
        raise UserError(f"key 'thresholds': no gate '{unknown}'; {did_you_mean(unknown, names)}")
    return [_with_noted(gate, found.get(gate.name), given.get(gate.name)) for gate in gates]


def _with_noted(gate: GateInput, source: Source | None, given: float | None) -> GateInput:
    if source is None or missing_reason(source):
        return replace(gate, given=given)
    scale = scale_of(source.folder, source.name)
    if scale is not None and given is not None:
        scale.check(given)
    noted = read_gate_json(source.folder).get("thresholds", {}).get(source.name)
    if given is None and noted is not None:
        given = Threshold.model_validate(noted).threshold
    return replace(gate, given=given, floor=None if scale is None else scale.floor)


def note_thresholds(
    run: Path,
    found: Mapping[str, Source],
    gates: Sequence[GateInput],
    dev: Sequence[Outcome],
    results: Sequence[GateResult],
    settings: Settings,
    replacing: bool,
    questions: Sequence[Question] = (),
) -> list[str]:
    """Note the threshold of every gate that its score file names, in that gate's folder; what was done, in lines.

    ``questions``: the dev questions, of which numbers are kept beside the scores. A calibrated threshold stays
    unless ``replacing``; see :func:`kbtrain.gates.noted.note`.
    """
    inputs, lines, noted = {gate.name: gate for gate in gates}, [], dict[Path, list[str]]()
    texts, entities = [question.text for question in questions], len(set(entities_of(questions)))
    asked = {"questions": dev_questions(texts, entities)} if questions else {}
    chosen = [gate for gate in results if gate.threshold is not None and gate.threshold_rule is not None]
    for result in chosen:
        source, gate = found.get(result.gate), inputs[result.gate]
        if source is None or (result.threshold_rule == "given" and result.threshold != gate.given):
            continue
        reason = missing_reason(source)
        if reason:
            lines.append(f"{result.gate}: its threshold is not noted, {reason}")
            continue
        done = note(source.folder, source.name, _threshold(run, result, gate, dev, settings, asked), replacing)
        line = done.line(result.gate, source.folder)
        lines += [line] if line else []
        if not done.kept and done.old != done.chosen:
            noted.setdefault(source.folder, []).append(result.gate)
    return [*lines, *(f"thresholds noted in {folder}: {', '.join(names)}" for folder, names in noted.items())]


def _threshold(
    run: Path,
    result: GateResult,
    gate: GateInput,
    dev: Sequence[Outcome],
    settings: Settings,
    asked: Mapping[str, object],
) -> Threshold:
    hashed = file_sha256(run / "examples" / "dev.jsonl")
    if result.threshold_rule == "max_loss":
        goal = CalibrationGoal("max_loss", max_loss=settings.max_loss, delta=settings.delta)
        found = calibrate(dev_table(gate, dev, settings.kind), goal, gate.floor)
        return Threshold(
            threshold=found.threshold,
            rule=found.rule,
            dev_file_sha256=hashed,
            n_dev=result.n_dev,
            evidence=found.evidence,
            dev={**asked, **({"accuracy": _right(gate, dev, found.threshold)} if settings.kind == "expected" else {})},
        )
    value = result.threshold if result.threshold is not None else 0.0
    rule = str(result.threshold_rule)
    seen: dict[str, object] = {}
    if len(gate.dev):
        seen = {"scores": kept_scores(gate.dev), "accuracy": _right(gate, dev, value), **asked}
    return Threshold(threshold=value, rule=rule, dev_file_sha256=hashed, n_dev=result.n_dev, dev=seen)


def _right(gate: GateInput, dev: Sequence[Outcome], threshold: float) -> float:
    """Share of right greedy answers on dev, whatever the threshold was chosen by: a gate's keys are compared by it,
    and one of them may have been calibrated, which is by greedy answers."""
    table = dev_table(gate, dev, "greedy")
    return round(float(np.where(table.scores > threshold, table.rag, table.llm).mean()), 6)
