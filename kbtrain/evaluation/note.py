"""Thresholds and the best key of an evaluation, noted in the folders of the gates that made the scores, with the map
from a score to the probability that a search helps and to the expected gain (``outlook``), fitted on dev."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kbtrain.arrays import Floats
from kbtrain.evaluation.calibrate import calibrate, question_facts
from kbtrain.evaluation.decisions import GateInput, dev_table
from kbtrain.evaluation.end_to_end import Settings
from kbtrain.evaluation.outcomes import AccuracyKind, Correctness, dev_answers, entities_of
from kbtrain.evaluation.results import GateResult
from kbtrain.evaluation.run_folder import RunFolder
from kbtrain.evaluation.savings import Saving, dev_rank
from kbtrain.gate.card import BestKey, KeyedCard, Outlook, TestFigures, Threshold, set_best
from kbtrain.gates.registry import read_card
from kbtrain.gates.thresholds_store import Source, note
from kbtrain.io.provenance import file_sha256
from kbtrain.metrics.calibration import calibration, is_probability, kept_scores
from kbtrain.metrics.thresholds import Rule
from kbtrain.records import Outcome, Target

BEST_RULE = "largest area on dev"


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
    dev, settings, lines, by_folder = folder.dev.outcomes, new.settings, [], dict[Path, list[str]]()
    tested = {saving.gate: _test_figures(saving) for saving in new.savings}
    inputs = {gate.name: gate for gate in gates}
    answers, groups = dev_answers(dev, settings.kind) if dev else None, entities_of(folder.dev.questions)
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
        outlook = fit_outlook(gate.dev, answers, groups, new.search_tokens) if answers else None
        threshold = threshold.model_copy(update={"test": tested.get(result.gate), "outlook": outlook})
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


LEAST = 50  # dev questions; fewer teach no map
FOLDS = 5


def fit_outlook(scores: Floats, answers: Correctness, groups: Sequence[str], tokens: float | None) -> Outlook | None:
    """Two isotonic regressions on dev: of "right with passages, wrong without", and of the difference of the answers.

    ``groups``: questions of one entity share a fold, by which the calibration error afterwards is cross-fitted.
    ``tokens``: mean of the prompt tokens that passages add. None for fewer than :data:`LEAST` questions, and where a
    search helps for none or for all.
    """
    helps, gain = answers.rag * (1 - answers.llm), answers.rag - answers.llm
    if len(scores) < LEAST or not 0 < helps.mean() < 1:
        return None
    grid, chance = _isotonic(scores, helps, 0.0)
    other, expected = _isotonic(scores, gain, -1.0)
    knots = np.union1d(grid, other)
    return Outlook(
        n=len(scores),
        scores=_rounded(knots),
        helps=_rounded(np.interp(knots, grid, chance)),
        gain=_rounded(np.interp(knots, other, expected)),
        ece_before=_error(helps, scores) if is_probability(scores) else None,
        ece=_cross_fitted_error(scores, helps, groups),
        search_tokens=None if tokens is None else round(tokens, 1),
    )


def _isotonic(scores: Floats, values: Floats, low: float) -> tuple[Floats, Floats]:
    """The knots of the best non-decreasing function, in [``low``, 1]; it is linear between them."""
    from sklearn.isotonic import IsotonicRegression

    model = IsotonicRegression(y_min=low, y_max=1, out_of_bounds="clip").fit(scores, values)
    return np.asarray(model.X_thresholds_, dtype=np.float64), np.asarray(model.y_thresholds_, dtype=np.float64)


def _cross_fitted_error(scores: Floats, helps: Floats, groups: Sequence[str]) -> float | None:
    """Calibration error of maps that were fitted without the question's fold; None for too few groups."""
    from sklearn.model_selection import GroupKFold

    if len(set(groups)) < FOLDS:
        return None
    predicted = np.zeros(len(scores))
    for fitted, held in GroupKFold(FOLDS).split(scores, groups=list(groups)):
        predicted[held] = np.interp(scores[held], *_isotonic(scores[fitted], helps[fitted], 0.0))
    return _error(helps, predicted)


def _error(helps: Floats, probabilities: Floats) -> float:
    return round(calibration(helps > 0.5, np.clip(probabilities, 0, 1)).ece, 4)


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(round(float(value), 7) for value in values)
