"""Classification of one split by each gate's scores, for every definition of "retrieval needed".

Also threshold-free comparison of scores from several files: a score that was published for some questions only is
measured on those, beside all others on the same questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kbtrain.arrays import Bools, Floats
from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.decisions import DevRule, GateInput, decide
from kbtrain.evaluation.scores import NOTHING, ByGate, Seen
from kbtrain.metrics.calibration import Calibrated, calibrated
from kbtrain.metrics.classification import Classification, classify, further_metrics
from kbtrain.metrics.ranking import drawn_areas
from kbtrain.metrics.significance import Delta, interval
from kbtrain.metrics.thresholds import AnyRule
from kbtrain.records import Outcome, Question


@dataclass(frozen=True)
class GateClassification:
    """One gate at the threshold chosen on dev; ``calibration`` and ``further`` metrics by each definition's name."""

    gate: str
    threshold: float
    threshold_rule: AnyRule
    retrieval_ratio: float
    definitions: list[Classification]
    calibration: dict[str, Calibrated] = field(default_factory=dict)
    seen: Seen = NOTHING
    further: dict[str, dict[str, float | None]] = field(default_factory=dict)


def classify_gates(
    dev: Sequence[Outcome], test: Sequence[Outcome], gates: Sequence[GateInput], *, tau_mastery: float, cut: DevRule
) -> list[GateClassification]:
    """``needed``, ``llm_greedy_wrong``, and ``unmastered`` where all test questions were sampled."""
    truths = _truths(test, tau_mastery)
    taught = dict(_truths(dev, tau_mastery))
    rows = []
    for gate in gates:
        decision = decide(gate, dev, cut)
        if decision.threshold is None:
            raise ValueError(f"gate {gate.name!r} has no threshold to choose")
        retrieved = decision.retrieve > 0.5
        definitions = [classify(name, truth, gate.test, retrieved) for name, truth in truths]
        probable = {
            name: calibrated(taught[name], gate.dev, truth, gate.test) for name, truth in truths if name in taught
        }
        ratio = float(retrieved.mean())
        value = decision.threshold.value
        further = {name: further_metrics(truth, gate.test, retrieved) for name, truth in truths}
        rows.append(GateClassification(gate.name, value, cut.rule, ratio, definitions, probable, gate.seen, further))
    return rows


def _truths(outcomes: Sequence[Outcome], tau_mastery: float) -> list[tuple[str, Bools]]:
    """Every definition of "retrieval needed" that the stored answers allow, by name."""
    truths = [("needed", oc.is_needed(outcomes)), oc.unmastered(outcomes, tau_mastery)]
    if truths[1][0] == "unmastered":
        truths.insert(1, oc.greedy_wrong(outcomes))
    return truths


def outcomes_of_data_set(outcomes: Sequence[Outcome], questions: Iterable[Question], name: str) -> list[Outcome]:
    """The outcomes of one data set's questions. Raises :class:`UserError` for a name that none of them has."""
    by_id = {question.id: question.dataset for question in questions}
    selected = [outcome for outcome in outcomes if by_id.get(outcome.question_id) == name]
    if not selected:
        names = {by_id[o.question_id] for o in outcomes if o.question_id in by_id}
        raise UserError(f"no question of data set '{name}'; {did_you_mean(name, names)}")
    return selected


def outcomes_with_score(outcomes: Sequence[Outcome], scores: ByGate, gate: str) -> list[Outcome]:
    """The outcomes that have a score of this gate. Raises :class:`UserError` for an unknown gate."""
    if gate not in scores:
        raise UserError(f"no scores of gate '{gate}'; {did_you_mean(gate, scores)}")
    return [outcome for outcome in outcomes if outcome.question_id in scores[gate]]


def complete_scores(outcomes: Sequence[Outcome], scores: ByGate) -> tuple[dict[str, Floats], dict[str, int]]:
    """The gates that have a score for every outcome, in the outcomes' order; of the others how many they have."""
    arrays, short = {}, {}
    for gate, by_question in scores.items():
        values = [by_question[o.question_id] for o in outcomes if o.question_id in by_question]
        if len(values) == len(outcomes):
            arrays[gate] = np.array(values, dtype=np.float64)
        else:
            short[gate] = len(values)
    return arrays, short


def score_areas(
    outcomes: Sequence[Outcome],
    scores: Mapping[str, Floats],
    reference: str,
    draws: int = 2_000,
    clusters: Sequence[str] | None = None,
) -> dict[str, tuple[Delta | None, Delta | None]]:
    """Each score's oracle-normalised area, and the reference's minus it, on the same resamples (greedy answers) of the
    questions, or of whole ``clusters`` of them.

    None where the oracle gains nothing over random, and for the reference itself.
    """
    correctness = oc.answers(outcomes, "greedy")
    drawn = drawn_areas(list(scores.values()), correctness.llm, correctness.rag, draws, 0, clusters)
    if drawn is None:
        return {gate: (None, None) for gate in scores}
    values = {gate: drawn[:, i] for i, gate in enumerate(scores)}
    base = values.get(reference)
    return {
        gate: (interval(draws_of_gate), None if base is None or gate == reference else interval(base - draws_of_gate))
        for gate, draws_of_gate in values.items()
    }
