"""Thresholds and the best key of an evaluation in the folders of the gates that made the scores, and those noted there
before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation.calibrate import CalibrationGoal, calibrate
from kbtrain.evaluation.decisions import GateInput, dev_table
from kbtrain.evaluation.end_to_end import Settings
from kbtrain.evaluation.outcomes import AccuracyKind, dev_answers, entities_of
from kbtrain.evaluation.outlook import fit_outlook
from kbtrain.evaluation.results import GateResult
from kbtrain.evaluation.run_folder import RunFolder, StoredScores
from kbtrain.evaluation.savings import Saving, dev_rank
from kbtrain.gate.card import BestKey, KeyedCard, TestFigures, Threshold, read_gate_json, set_best
from kbtrain.gates.question_shift import dev_questions
from kbtrain.gates.registry import read_card
from kbtrain.gates.seakr.gate import scale_of
from kbtrain.gates.thresholds_store import Source, missing_reason, note, source_of
from kbtrain.io.provenance import file_sha256
from kbtrain.metrics.calibration import kept_scores
from kbtrain.metrics.thresholds import Rule
from kbtrain.records import Outcome, Target

BEST_RULE = "largest area on dev"


def gate_sources(run: Path, stored: StoredScores) -> dict[str, Source]:
    """The gate behind each score of a run folder, as far as the score files name it."""
    by_gate = {gate: source_of(run, stored.meta, gate) for gate in stored.by_gate}
    return {gate: source for gate, source in by_gate.items() if source is not None}


def add_noted(gates: Sequence[GateInput], behind: Mapping[str, Source], named: Mapping[str, float]) -> list[GateInput]:
    """The gates with the lowest score they can give and the threshold of rule ``given``: one that is named, else the
    one noted in the gate's folder.

    Raises :class:`UserError` for a name that no gate has, and for a threshold under its gate's floor.
    """
    names = {gate.name for gate in gates}
    unknown = next((name for name in named if name not in names), None)
    if unknown is not None:
        raise UserError(f"key 'thresholds': no gate '{unknown}'; {did_you_mean(unknown, names)}")
    return [_with_noted(gate, behind.get(gate.name), named.get(gate.name)) for gate in gates]


def _with_noted(gate: GateInput, source: Source | None, threshold: float | None) -> GateInput:
    if source is None or missing_reason(source):
        return replace(gate, given=threshold)
    scale = scale_of(source.folder, source.name)
    if scale is not None and threshold is not None:
        scale.check(threshold)
    stored = read_gate_json(source.folder).get("thresholds", {}).get(source.name)
    if threshold is None and stored is not None:
        threshold = Threshold.model_validate(stored).threshold
    return replace(gate, given=threshold, floor=None if scale is None else scale.floor)


@dataclass(frozen=True)
class ChosenThresholds:
    """The gates' results, whose thresholds are to be noted, the evaluation's settings, and the figures noted with them.

    ``savings``: figures of the same thresholds on test. ``search_tokens``: see :class:`~kbtrain.gate.card.Outlook`.
    ``replacing``: note them in place of calibrated thresholds, too; see :func:`kbtrain.gates.thresholds_store.note`.
    """

    results: Sequence[GateResult]
    settings: Settings
    savings: Sequence[Saving] = ()
    search_tokens: float | None = None
    replacing: bool = False


def note_thresholds(folder: RunFolder, gates: Sequence[GateInput], new: ChosenThresholds) -> list[str]:
    """Note the threshold of every gate that its score file names, and the best of several keys, in that gate's folder;
    what was done, in lines. Numbers of the run's dev questions are kept beside the scores.
    """
    run, settings, behind = folder.path, new.settings, gate_sources(folder.path, folder.stored)
    dev, questions = folder.dev.outcomes, folder.dev.questions
    tested = {saving.gate: _test_figures(saving) for saving in new.savings}
    inputs, lines, by_folder = {gate.name: gate for gate in gates}, [], dict[Path, list[str]]()
    texts, entities = [question.text for question in questions], len(set(entities_of(questions)))
    answers = dev_answers(dev, settings.kind) if dev else None
    groups = entities_of(questions) if questions else [outcome.question_id for outcome in dev]
    dev_facts = {"questions": dev_questions(texts, entities)} if questions else {}
    chosen = [gate for gate in new.results if gate.threshold is not None and gate.threshold_rule is not None]
    for result in chosen:
        source, gate = behind.get(result.gate), inputs[result.gate]
        if source is None or (result.threshold_rule == "given" and result.threshold != gate.given):
            continue
        reason = missing_reason(source)
        if reason:
            lines.append(f"{result.gate}: its threshold is not noted, {reason}")
            continue
        threshold = _threshold(run, result, gate, dev, settings, dev_facts)
        outlook = fit_outlook(gate.dev, answers, groups, new.search_tokens) if answers else None
        threshold = threshold.model_copy(update={"test": tested.get(result.gate), "outlook": outlook})
        done = note(source.folder, source.name, threshold, new.replacing)
        line = done.line(result.gate, source.folder)
        lines += [line] if line else []
        if not done.kept and done.old != done.chosen:
            by_folder.setdefault(source.folder, []).append(result.gate)
    lines += [f"thresholds noted in {path}: {', '.join(names)}" for path, names in by_folder.items()]
    return lines + _note_best_keys(behind, [inputs[result.gate] for result in chosen], dev, settings.kind)


def results_at_rule(results: Sequence[GateResult], rule: Rule | None) -> list[GateResult]:
    """The results with the thresholds of another rule, where a gate has one; as they are without a rule."""
    rows = []
    for result in results:
        point = next((point for point in result.rules if point.rule == rule), None)
        at = result if point is None else replace(result, threshold=point.threshold, threshold_rule=point.rule)
        rows.append(at)
    return rows


def _note_best_keys(
    behind: Mapping[str, Source], gates: Sequence[GateInput], dev: Sequence[Outcome], kind: AccuracyKind
) -> list[str]:
    """Note the key of each folder that ranks dev best by :func:`dev_rank`; a line where it was another one before."""
    by_folder: dict[Path, dict[Target, GateInput]] = {}
    cards: dict[Path, KeyedCard] = {}
    for gate in gates if dev else ():
        source = behind.get(gate.name)
        if source is None or missing_reason(source):
            continue
        card = read_card(source.folder)
        if isinstance(card, KeyedCard) and len(card.keys) > 1 and source.name in card.names():
            cards[source.folder] = card
            by_folder.setdefault(source.folder, {})[card.keys[card.names().index(source.name)]] = gate
    lines, answers = [], dev_answers(dev, kind) if by_folder else None
    for folder, keys in by_folder.items():
        assert answers is not None
        ranks = {key: dev_rank(gate.dev, answers) for key, gate in keys.items()}
        best = max(ranks, key=lambda key: ranks[key])
        areas = {key: None if area == -math.inf else round(area, 6) for key, (area, _) in ranks.items()}
        set_best(folder, BestKey(key=best, rule=BEST_RULE, n_dev=len(dev), areas=areas))
        if best != cards[folder].best_key():
            lines.append(f"{folder}: key {best} decides (before: {cards[folder].best_key()}), {BEST_RULE}")
    return lines


def _test_figures(saving: Saving) -> TestFigures:
    setting = saving.noted
    return TestFigures(
        n=saving.n,
        saves=saving.saves,
        accuracy=round(setting.accuracy, 6),
        saved=round(setting.saved.mean, 6),
        change=round(setting.change.mean, 6),
        low=round(setting.change.low, 6),
        high=round(setting.change.high, 6),
    )


def _threshold(
    run: Path,
    result: GateResult,
    gate: GateInput,
    dev: Sequence[Outcome],
    settings: Settings,
    dev_facts: Mapping[str, object],
) -> Threshold:
    hashed = file_sha256(run / "examples" / "dev.jsonl")
    if result.threshold_rule == "max_loss":
        goal = CalibrationGoal("max_loss", max_loss=settings.max_loss, delta=settings.delta)
        chosen = calibrate(dev_table(gate, dev, settings.kind), goal, gate.floor)
        return Threshold(
            threshold=chosen.threshold,
            rule=chosen.rule,
            dev_file_sha256=hashed,
            n_dev=result.n_dev,
            evidence=chosen.evidence,
            dev=dict(dev_facts),
        )
    value = result.threshold if result.threshold is not None else 0.0
    rule = str(result.threshold_rule)
    dev_facts_kept: dict[str, object] = {}
    if len(gate.dev):
        dev_facts_kept = {"scores": kept_scores(gate.dev), **dev_facts}
    return Threshold(threshold=value, rule=rule, dev_file_sha256=hashed, n_dev=result.n_dev, dev=dev_facts_kept)
