"""From a gate's scores to its decisions: which questions are retrieved, and the threshold that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.outcomes import AccuracyKind, Answers
from kbtrain.metrics.thresholds import RULES, Dev, Rule, Threshold, choose
from kbtrain.records import Outcome

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GateInput:
    """A gate's scores (higher = retrieval more needed) in the order of the dev and of the evaluated outcomes.

    ``fixed`` is the threshold of a gate that has nothing to choose (always, never, oracle); ``midpoint`` the neutral
    score for rule ``0.5``. ``gate_seconds``, ``gate_requests``, ``gate_samples`` and ``gate_tokens`` (generated) are
    for all evaluated questions together.
    """

    name: str
    dev: Floats
    test: Floats
    gate_seconds: float = 0.0
    gate_requests: int = 0
    gate_samples: int = 0
    gate_tokens: int = 0
    midpoint: float = 0.5
    fixed: float | None = None

    @property
    def learnt(self) -> bool:
        """Whether its threshold is chosen on dev."""
        return self.fixed is None and self.name != "random"


@dataclass(frozen=True)
class Decision:
    """The probability (in general 0 or 1) of retrieving each question, and the threshold it came from.

    The random gate retrieves every question with probability r, so that its figures are expected values.
    """

    gate: GateInput
    retrieve: Floats
    threshold: Threshold | None

    def under(self, answers: Answers) -> Floats:
        """``retrieve``; the oracle decides by the accuracy it is measured with."""
        return (answers.rag > answers.llm).astype(np.float64) if self.gate.name == "oracle" else self.retrieve

    def scores(self, answers: Answers) -> Floats:
        """The scores that order the questions; the random gate's order means nothing, so all are equal."""
        if self.gate.name == "oracle":
            return answers.rag - answers.llm
        return np.zeros_like(self.retrieve) if self.gate.name == "random" else self.gate.test


def decide(
    gate: GateInput, dev: Sequence[Outcome], rule: Rule, target_ratio: float, kind: AccuracyKind = "greedy"
) -> Decision:
    """Apply a threshold rule, chosen on ``dev`` alone. Raises :class:`UserError` (see ``thresholds.choose``)."""
    if gate.name == "random":
        return Decision(gate, np.full(len(gate.test), target_ratio), None)
    if gate.fixed is not None:
        return Decision(gate, (gate.test > gate.fixed).astype(np.float64), None)
    known = oc.answers(dev, kind if oc.has_expected(dev) else "greedy")
    table = Dev(gate.dev, known.llm, known.rag, oc.needed(dev).astype(np.float64))
    threshold = choose(rule, table, target_ratio, gate.midpoint)
    return Decision(gate, (gate.test > threshold.value).astype(np.float64), threshold)


def by_all_rules(
    gate: GateInput, dev: Sequence[Outcome], target_ratio: float, kind: AccuracyKind = "greedy"
) -> list[Decision]:
    """One decision per rule that can be applied; none for gates without a choice."""
    if not gate.learnt or not dev:
        return []
    rules = [rule for rule in RULES if rule != "best_f1" or oc.needed(dev).any()]
    return [decide(gate, dev, rule, target_ratio, kind) for rule in rules]
