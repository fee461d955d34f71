"""Thresholds and the best key of an evaluation, noted in the folders of the gates that made the scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kbtrain.evaluation.calibrate import calibrate, question_facts
from kbtrain.evaluation.decisions import GateInput, dev_table
from kbtrain.evaluation.end_to_end import Settings
from kbtrain.evaluation.outcomes import AccuracyKind, dev_answers
from kbtrain.evaluation.results import GateResult
from kbtrain.evaluation.run_folder import RunFolder
from kbtrain.evaluation.savings import Saving, dev_rank
from kbtrain.gate.card import BestKey, KeyedCard, TestFigures, Threshold, set_best
from kbtrain.gates.registry import read_card
from kbtrain.gates.thresholds_store import Source, note
from kbtrain.io.provenance import file_sha256
from kbtrain.metrics.calibration import kept_scores
from kbtrain.metrics.thresholds import Rule
from kbtrain.records import Outcome, Target

BEST_RULE = "largest area on dev"


@dataclass(frozen=True)
class ChosenThresholds:
    """The gates' results, whose thresholds are to be noted, the evaluation's settings, and the figures noted with them.

    ``savings``: figures of the same thresholds on test.
    ``replacing``: note them in place of calibrated thresholds, too; see :func:`kbtrain.gates.thresholds_store.note`.
    """

    results: Sequence[GateResult]
    settings: Settings
    savings: Sequence[Saving] = ()
    replacing: bool = False


def note_thresholds(folder: RunFolder, gates: Sequence[GateInput], new: ChosenThresholds) -> list[str]:
    """Note the threshold of every gate that its score file names, and the best of several keys, in that gate's folder;
    what was done, in lines. Numbers of the run's dev questions are kept beside the scores.
    """
    dev, settings, lines, by_folder = folder.dev.outcomes, new.settings, [], dict[Path, list[str]]()
    tested = {saving.gate: _test_figures(saving) for saving in new.savings}
    inputs = {gate.name: gate for gate in gates}
    hashed = file_sha256(folder.path / "examples" / "dev.jsonl")
    chosen = [gate for gate in new.results if gate.threshold is not None and gate.threshold_rule is not None]
    for result in chosen:
        source, gate = folder.stored.behind.get(result.gate), inputs[result.gate]
        if result.threshold_rule == "given" and result.threshold != gate.given:
            continue
        if source is None:
            reason = folder.stored.missing.get(result.gate)
            lines += [f"{result.gate}: its threshold is not noted, {reason}"] if reason else []
            continue
        threshold = _threshold(result, gate, folder, settings, hashed)
        threshold = threshold.model_copy(update={"test": tested.get(result.gate)})
        done = note(source.folder, source.name, threshold, new.replacing)
        line = done.line(result.gate, source.folder)
        lines += [line] if line else []
        if not done.kept and done.old != done.chosen:
            by_folder.setdefault(source.folder, []).append(result.gate)
    lines += [f"thresholds noted in {path}: {', '.join(names)}" for path, names in by_folder.items()]
    return lines + _note_best_keys(folder.stored.behind, [inputs[result.gate] for result in chosen], dev, settings.kind)


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
        if source is None:
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
        areas = {key: None if area == -math.inf else round(area, 6) for key, area in ranks.items()}
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
    result: GateResult, gate: GateInput, folder: RunFolder, settings: Settings, dev_sha256: str
) -> Threshold:
    facts = question_facts(folder.dev.questions)
    if result.threshold_rule == "max_loss":
        chosen = calibrate(dev_table(gate, folder.dev.outcomes, settings.kind), settings, gate.floor)
        value, rule, evidence = chosen.threshold, chosen.rule, chosen.evidence
    else:
        value, rule, evidence = result.threshold or 0.0, str(result.threshold_rule), {}
        facts = {"scores": kept_scores(gate.dev), **facts} if facts else {}
    return Threshold(
        threshold=value, rule=rule, dev_file_sha256=dev_sha256, n_dev=result.n_dev, evidence=evidence, dev=facts
    )
