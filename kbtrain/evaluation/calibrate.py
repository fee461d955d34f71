"""A gate's threshold for a goal, chosen on dev questions, with the evidence to be kept beside it.

Also the thresholds and the best key of an evaluation, noted in the folders of the gates that made the scores.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kbtrain.arrays import Floats
from kbtrain.errors import UserError
from kbtrain.evaluation import decisions
from kbtrain.evaluation.decisions import DevRule, GateInput, choose_threshold, decide
from kbtrain.evaluation.end_to_end import Settings
from kbtrain.evaluation.outcomes import AccuracyKind, answers, dev_kind, entities_of
from kbtrain.evaluation.results import GateResult
from kbtrain.evaluation.run_folder import RunFolder, read_outcomes
from kbtrain.evaluation.savings import Saving
from kbtrain.evaluation.scores import in_order, stored_scores
from kbtrain.gate.card import BestKey, KeyedCard, TestFigures, Threshold, decision_text, promise_text, set_best
from kbtrain.gates.question_shift import dev_questions
from kbtrain.gates.registry import read_card
from kbtrain.gates.thresholds_store import Source, note
from kbtrain.io.provenance import file_sha256
from kbtrain.metrics.calibration import kept_scores
from kbtrain.metrics.ranking import normalised_area
from kbtrain.metrics.thresholds import Dev, promised
from kbtrain.records import Outcome, Question, Split, Target


def warn_of_dependence(questions: Sequence[Question]) -> None:
    """Warn where a promise (:func:`kbtrain.metrics.thresholds.control`) takes dev questions for more evidence than they
    are: it counts each as drawn by itself, and several about one entity are answered alike."""
    entities = len(set(entities_of(questions)))
    if entities < len(questions):
        warnings.warn(
            f"the {len(questions)} dev questions ask about {entities} entities, and the promise counts "
            "each question as drawn by itself: it may fail more often than stated",
            stacklevel=2,
        )


@dataclass(frozen=True)
class Chosen:
    """A threshold and what it does on the dev questions."""

    threshold: float
    rule: str
    evidence: dict[str, Any]

    @property
    def decision(self) -> str:
        return decision_text(self.threshold, self.threshold < min(self.evidence["dev_scores"]))

    @property
    def effect(self) -> str:
        """The decision and what it does on dev, in short."""
        e = self.evidence
        return (
            f"{self.decision}, {1 - e['retrieval_ratio']:.1%} of the searches skipped, "
            f"accuracy {e['accuracy']:.3f} (always searching {e['all_rag']:.3f})"
        )

    def line(self) -> str:
        """The threshold, and what it does on dev."""
        e, bound = self.evidence, self.evidence["guarantee"]
        condition = "if these questions were not used to choose anything else"
        promise = f"; promised: {promise_text(bound)}, {condition}" if bound else ""
        return (
            f"{self.decision} ({self.rule}); {e['n_dev']} dev questions: "
            f"{e['retrieval_ratio']:.1%} searched, accuracy {e['accuracy']:.3f} (never searching {e['llm_only']:.3f}, "
            f"always {e['all_rag']:.3f}, random {e['random_at_that_ratio']:.3f}){promise}"
        )


def choices(dev: Dev, cut: DevRule) -> list[str]:
    """The two thresholds that a person may want, in words: most right answers, and fewest searches with a promised
    loss (``max_loss`` and ``delta`` of ``cut``), with what more dev questions would allow."""
    right = calibrate(dev, DevRule("best_accuracy"))
    sure = promised(dev, cut.max_loss, cut.delta)
    name = f"fewest searches, at most {100 * cut.max_loss:g} points lost with probability {1 - cut.delta:g}"
    rule = DevRule("max_loss", max_loss=cut.max_loss, delta=cut.delta)
    effect = calibrate(dev, rule).effect if sure.guarantee else "cannot be promised"
    return [f"most right answers: {right.effect}", f"{name}: {effect}. {sure.more}".rstrip()]


def calibrate(dev: Dev, cut: DevRule, preset: float | None = None) -> Chosen:
    """Choose the threshold by a rule, or take the ``preset`` one by rule given.

    Raises :class:`UserError` as :func:`choose_threshold` does: without dev questions, or with too few for a guarantee.
    """
    choice = choose_threshold(dev, cut, preset)
    guarantee = None if choice.guarantee is None else asdict(choice.guarantee)
    return Chosen(choice.value, str(cut), _evidence(dev, choice.value) | {"guarantee": guarantee})


def stored_dev(run: Path, gate: str) -> Dev:
    """The gate's stored scores of the dev questions beside their outcomes. Raises :class:`UserError` without any."""
    values, rows = _stored(run, gate, "dev")
    if not rows:
        raise UserError("no dev question with a score and an outcome to choose a threshold on")
    return decisions.dev_table(GateInput(gate, values, np.empty(0)), rows)


def at_threshold(run: Path, result: GateResult, threshold: float) -> GateResult:
    """A gate's result at another threshold on the same test questions, as its folder may hold one by now."""
    if threshold == result.threshold:
        return result
    values, rows = _stored(run, result.gate, "test")
    given = GateInput(result.gate, np.empty(0), values, fixed=threshold)
    (made,) = decisions.measure(
        answers(rows, "greedy"), [decide(given, [], DevRule())], draws=Settings.bootstrap_draws, seed=0
    )
    return replace(result, threshold=threshold, **vars(made.point))


def _stored(run: Path, gate: str, split: Split) -> tuple[Floats, list[Outcome]]:
    path, scores = stored_scores(run).scores_of(gate)
    rows = [row for row in read_outcomes(run) if row.split == split]
    return np.array(in_order(gate, scores, [row.question_id for row in rows], path)), rows


def question_facts(questions: Sequence[Question]) -> dict[str, Any]:
    """Numbers of the dev questions, kept with a threshold, by which a later shift of questions is seen."""
    if not questions:
        return {}
    return {"questions": dev_questions([question.text for question in questions], len(set(entities_of(questions))))}


def card_threshold(chosen: Chosen, dev: Sequence[Question], hashes: Mapping[str, str]) -> Threshold:
    """The threshold for a gate's card; ``hashes``: of the score file first, then of other files it was chosen from."""
    return Threshold(
        threshold=chosen.threshold,
        rule=chosen.rule,
        dev_file_sha256=next(iter(hashes.values())),
        n_dev=chosen.evidence["n_dev"],
        evidence=chosen.evidence | {"sha256": dict(hashes)},
        dev=question_facts(dev),
    )


def _evidence(dev: Dev, threshold: float) -> dict[str, Any]:
    """Accuracy of retrieving above the threshold on dev; without intervals, since dev chose it."""
    searched = dev.scores > threshold
    never, always, ratio = float(dev.llm.mean()), float(dev.rag.mean()), float(searched.mean())
    return {
        "n_dev": len(dev.scores),
        "accuracy": float(np.where(searched, dev.rag, dev.llm).mean()),
        "llm_only": never,
        "all_rag": always,
        "retrieval_ratio": ratio,
        "random_at_that_ratio": (1 - ratio) * never + ratio * always,
        "dev_scores": kept_scores(dev.scores),
    }


BEST_RULE = "largest area on dev"


def note_thresholds(
    folder: RunFolder, gates: Sequence[GateInput], results: Sequence[GateResult], settings: Settings,
    savings: Sequence[Saving], *, replacing: bool, keeping: bool,
) -> list[str]:  # fmt: skip
    """Note the threshold of every gate that its score file names, and the best of several keys, in that gate's folder;
    what was done, in lines. Numbers of the run's dev questions are kept beside the scores.

    ``savings``: figures of the same thresholds on test. ``replacing``: note them in place of calibrated thresholds,
    too; ``keeping``: not in place of those by another rule; see :func:`kbtrain.gates.thresholds_store.note`.
    """
    dev, lines, by_folder = folder.dev.outcomes, [], dict[Path, list[str]]()
    tested = {saving.gate: _test_figures(saving) for saving in savings}
    inputs = {gate.name: gate for gate in gates}
    hashed = file_sha256(folder.path / "examples" / "dev.jsonl") if folder.stored.behind else ""  # imported gates alone
    chosen = [gate for gate in results if gate.threshold is not None and gate.threshold_rule is not None]
    for result in chosen:
        source, gate = folder.stored.behind.get(result.gate), inputs[result.gate]
        if result.threshold_rule == "given" and result.threshold != gate.given:
            continue
        if source is None:
            reason = folder.stored.missing.get(result.gate)
            lines += [f"{result.gate}: its threshold is not stored, {reason}"] if reason else []
            continue
        threshold = _threshold(result, gate, folder, settings, hashed)
        threshold = threshold.model_copy(update={"test": tested.get(result.gate)})
        done = note(source.folder, source.name, threshold, replacing, keeping)
        line = done.line(result.gate, source.folder)
        lines += [line] if line else []
        if not done.kept and done.old != done.chosen:
            by_folder.setdefault(source.folder, []).append(result.gate)
    lines += [f"thresholds stored in {path}: {', '.join(names)}" for path, names in by_folder.items()]
    return lines + _note_best_keys(folder.stored.behind, [inputs[result.gate] for result in chosen], dev, settings.kind)


def _note_best_keys(
    behind: Mapping[str, Source], gates: Sequence[GateInput], dev: Sequence[Outcome], kind: AccuracyKind
) -> list[str]:
    """Note the key of each folder with the largest area on dev; a line where it was another one before."""
    by_folder: dict[Path, dict[Target, GateInput]] = {}
    cards: dict[Path, KeyedCard] = {}
    for gate in gates if dev else ():
        if (source := behind.get(gate.name)) is None:
            continue
        card = read_card(source.folder)
        if isinstance(card, KeyedCard) and len(card.keys) > 1 and source.name in card.names():
            cards[source.folder] = card
            by_folder.setdefault(source.folder, {})[card.keys[card.names().index(source.name)]] = gate
    lines, graded = [], answers(dev, dev_kind(dev, kind))
    for folder, keys in by_folder.items():
        areas = {key: normalised_area(gate.dev, graded.llm, graded.rag) for key, gate in keys.items()}
        best = max(areas, key=lambda key: -math.inf if (area := areas[key]) is None else area)
        rounded = {key: area and round(area, 6) for key, area in areas.items()}
        set_best(folder, BestKey(key=best, rule=BEST_RULE, n_dev=len(dev), areas=rounded))
        if best != cards[folder].best_key():
            lines.append(f"{folder}: key {best} decides (before: {cards[folder].best_key()}), {BEST_RULE}")
    return lines


def _test_figures(saving: Saving) -> TestFigures:
    setting = saving.noted
    return TestFigures(
        n=saving.n, saves=saving.saves, accuracy=round(setting.accuracy, 6), saved=round(setting.saved.mean, 6),
        change=round(setting.change.mean, 6), low=round(setting.change.low, 6), high=round(setting.change.high, 6),
    )  # fmt: skip


def _threshold(
    result: GateResult, gate: GateInput, folder: RunFolder, settings: Settings, dev_sha256: str
) -> Threshold:
    facts = question_facts(folder.dev.questions)
    if result.threshold_rule == "max_loss":
        chosen = calibrate(decisions.dev_table(gate, folder.dev.outcomes, settings.kind), settings)
        value, rule, evidence = chosen.threshold, chosen.rule, chosen.evidence
    else:
        value, rule, evidence = result.threshold or 0.0, str(result.threshold_rule), {}
        facts = {"scores": kept_scores(gate.dev), **facts} if facts else {}
    return Threshold(
        threshold=value, rule=rule, dev_file_sha256=dev_sha256, n_dev=result.n_dev, evidence=evidence, dev=facts
    )
