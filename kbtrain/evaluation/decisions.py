"""Decisions of gates from their scores, and their accuracy against a random gate of the same ratio.

A decision holds the threshold it came from; differences have paired intervals.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kbtrain.arrays import Bools, Floats
from kbtrain.errors import UserError
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.outcomes import AccuracyKind, Correctness
from kbtrain.evaluation.results import Comparison, Point
from kbtrain.evaluation.scores import NOTHING, Seen
from kbtrain.metrics.calibration import Calibration, calibration, is_probability
from kbtrain.metrics.registry import Classification, classify, further_metrics
from kbtrain.metrics.significance import PolicyDraws, draw_policies, holm, permutation_ps, random_gate_p
from kbtrain.metrics.thresholds import RULES, AnyRule, Dev, ThresholdChoice, Training, choose, control
from kbtrain.records import Outcome


@dataclass(frozen=True)
class GateInput:
    """A gate's scores (higher = retrieval more needed) in the order of the dev and of the evaluated outcomes.

    ``fixed`` is the threshold of a gate that has nothing to choose (always, never, oracle); ``midpoint`` the neutral
    score for rule ``0.5``. ``gate_seconds``, ``gate_requests``, ``gate_samples`` and ``gate_tokens`` (generated) are
    for all evaluated questions together. ``given`` is the threshold of rule ``given``; ``seen`` questions that its
    training knew. ``within_answer``: the plain answer continues the gate's pass. ``after_search``: it reads what was
    found. ``train``: its training questions.
    """

    name: str
    dev: Floats
    test: Floats
    gate_seconds: float = 0.0
    gate_requests: int = 0
    gate_samples: int = 0
    gate_tokens: int = 0
    within_answer: bool = False
    after_search: bool = False
    midpoint: float = 0.5
    fixed: float | None = None
    given: float | None = None
    seen: Seen = NOTHING
    train: Training = field(default_factory=Training)

    @property
    def learnt(self) -> bool:
        """True if its threshold is chosen on dev."""
        return self.fixed is None and self.name != "random"


@dataclass(frozen=True)
class GateDecisions:
    """The probability (in general 0 or 1) of retrieving each question, and the threshold it came from.

    The random gate retrieves every question with probability r, so that its figures are expected values.
    """

    gate: GateInput
    retrieve: Floats
    threshold: ThresholdChoice | None

    def under(self, answers: Correctness) -> Floats:
        """``retrieve``; the oracle decides by the accuracy it is measured with."""
        return (answers.rag > answers.llm).astype(np.float64) if self.gate.name == "oracle" else self.retrieve

    def scores(self, answers: Correctness) -> Floats:
        """The scores that order the questions; the random gate's order means nothing, so all are equal."""
        if self.gate.name == "oracle":
            return answers.rag - answers.llm
        return np.zeros_like(self.retrieve) if self.gate.name == "random" else self.gate.test


@dataclass(frozen=True)
class DevRule:
    """Rule by which thresholds are chosen on dev, and the accuracy that it looks at (``kind``).

    ``target_ratio``: of rule ``ratio``; ``max_loss``: at most that of All-RAG's accuracy is lost, with probability
    1 - ``delta``.
    """

    rule: AnyRule = "ratio"
    target_ratio: float = 0.5
    kind: AccuracyKind = "greedy"
    max_loss: float = 0.05
    delta: float = 0.1

    def __str__(self) -> str:
        """As it is noted in ``gate.json``."""
        if self.rule == "ratio":
            return f"ratio {self.target_ratio:g}"
        if self.rule == "max_loss":
            return f"max_loss {self.max_loss:g} with probability {1 - self.delta:g}"
        return self.rule


def decide(gate: GateInput, dev: Sequence[Outcome], cut: DevRule) -> GateDecisions:
    """Apply a threshold rule, chosen on ``dev`` alone. Raises :class:`UserError` (see :func:`choose_threshold`)."""
    if gate.name == "random":
        return GateDecisions(gate, np.full(len(gate.test), cut.target_ratio), None)
    if gate.fixed is not None:
        return GateDecisions(gate, (gate.test > gate.fixed).astype(np.float64), None)
    threshold = choose_threshold(dev_table(gate, dev, cut.kind), cut, gate.given, gate.midpoint)
    return GateDecisions(gate, (gate.test > threshold.value).astype(np.float64), threshold)


def dev_table(gate: GateInput, dev: Sequence[Outcome], kind: AccuracyKind = "greedy") -> Dev:
    """A gate's dev scores beside the answers' correctness, expected only where every dev question was sampled."""
    correctness = oc.answers(dev, oc.dev_kind(dev, kind))
    return Dev(gate.dev, correctness.llm, correctness.rag, oc.is_needed(dev).astype(np.float64), gate.train)


def choose_threshold(table: Dev, cut: DevRule, preset: float | None = None, midpoint: float = 0.5) -> ThresholdChoice:
    """The threshold by a rule.

    Rule ``given`` without a ``preset`` one is rule ``ratio``. Raises :class:`UserError` (see ``thresholds.choose``
    and ``thresholds.control``).
    """
    rule = cut.rule
    if rule == "max_loss":
        guarantee = control(table, cut.max_loss, cut.delta)
        return ThresholdChoice(guarantee.threshold, rule, len(table.scores), guarantee)
    if rule == "given" and preset is not None:
        return ThresholdChoice(preset, rule, len(table.scores))
    return choose("ratio" if rule == "given" else rule, table, cut.target_ratio, midpoint)


def decide_by_rules(gate: GateInput, dev: Sequence[Outcome], cut: DevRule) -> list[GateDecisions]:
    """One decision per rule that can be applied; none for gates without a choice."""
    if not gate.learnt or not dev:
        return []
    rules = [rule for rule in RULES if rule != "best_f1" or oc.is_needed(dev).any()]
    made = [decide(gate, dev, replace(cut, rule=rule)) for rule in rules]
    with contextlib.suppress(UserError):  # dev may be too small for any promise
        made.append(decide(gate, dev, replace(cut, rule="max_loss")))
    return made


@dataclass(frozen=True)
class GateClassification:
    """One gate at the threshold chosen on dev; ``calibration`` (None: the scores are no probabilities) and ``further``
    metrics by each definition's name."""

    gate: str
    threshold: float
    threshold_rule: AnyRule
    retrieval_ratio: float
    definitions: list[Classification]
    calibration: dict[str, Calibration | None] = field(default_factory=dict)
    seen: Seen = NOTHING
    further: dict[str, dict[str, float | None]] = field(default_factory=dict)


def classify_gates(
    dev: Sequence[Outcome], test: Sequence[Outcome], gates: Sequence[GateInput], *, tau_mastery: float, cut: DevRule
) -> list[GateClassification]:
    """``needed``, ``llm_greedy_wrong``, and ``unmastered`` where all test questions were sampled."""
    truths, rows = _truths(test, tau_mastery), []
    for gate in gates:
        decision = decide(gate, dev, cut)
        if decision.threshold is None:
            raise ValueError(f"gate {gate.name!r} has no threshold to choose")
        retrieved = decision.retrieve > 0.5
        definitions = [classify(name, truth, gate.test, retrieved) for name, truth in truths]
        bounded = is_probability(gate.test)
        probable = {name: calibration(truth, gate.test) if bounded else None for name, truth in truths}
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


@dataclass(frozen=True)
class DecisionFigures:
    """A decision's figures, as observed and in resamples, and the correctness of each question under it."""

    point: Point
    drawn: PolicyDraws
    correct: Floats


def measure(
    answers: Correctness, decisions: Sequence[GateDecisions], *, draws: int, seed: int
) -> list[DecisionFigures]:
    """All decisions on the same questions and the same resamples.

    In each resample the random accuracy is recomputed from the resampled questions at the resampled ratio.
    """
    if not decisions:
        return []
    retrieve = [decision.under(answers) for decision in decisions]
    drawn = draw_policies(answers.llm, answers.rag, retrieve, draws, seed, answers.clusters)
    p_values = _p_values_of_chance(answers, np.stack(retrieve) > 0, draws, seed)
    return [_measure(answers, *of) for of in zip(decisions, drawn, p_values, strict=True)]


def _measure(answers: Correctness, decision: GateDecisions, drawn: PolicyDraws, p_of_chance: float) -> DecisionFigures:
    point = Point(
        accuracy_kind=answers.kind, accuracy=float(drawn.accuracy[0]), retrieval_ratio=float(drawn.ratio[0]),
        random_accuracy=float(drawn.chance[0]), delta_vs_random=drawn.over_chance, delta_vs_llm_only=drawn.over_never,
        delta_vs_all_rag=drawn.over_always, p_vs_random=p_of_chance if decision.threshold else None,
    )  # fmt: skip
    return DecisionFigures(point, drawn, answers.llm + drawn.retrieve * drawn.gains)


def _p_values_of_chance(answers: Correctness, searched: Bools, draws: int, seed: int) -> list[float]:
    """Of each gate's searches (gates, n): exact where questions are exchanged and gains are whole, else permuted."""
    gain = answers.rag - answers.llm
    if answers.clusters is None:
        exact = [random_gate_p(gain, int(row.sum()), float(gain[row].sum())) for row in searched]
        values = [p for p in exact if p is not None]
        if len(values) == len(exact):
            return values
    return permutation_ps(gain, searched.astype(np.float64), draws, seed, answers.clusters)


def correct_families(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """McNemar's p-values with Holm's correction: one family for each gate that others are compared with."""
    adjusted: dict[int, float] = {}
    for other in {c.other for c in comparisons}:
        family = {i: c.mcnemar.p for i, c in enumerate(comparisons) if c.other == other and c.mcnemar is not None}
        adjusted |= zip(family, holm(list(family.values())), strict=True)
    return [
        replace(c, mcnemar=replace(c.mcnemar, p_holm=adjusted[i])) if c.mcnemar is not None else c
        for i, c in enumerate(comparisons)
    ]
