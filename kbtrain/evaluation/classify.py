"""Classification of one split by each gate's scores, for every definition of "retrieval needed"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.decisions import GateInput, decide
from kbtrain.metrics.calibration import Calibrated, calibrated
from kbtrain.metrics.classification import Bools, Classification, classify
from kbtrain.metrics.thresholds import Rule
from kbtrain.records import Outcome


@dataclass(frozen=True)
class GateClassification:
    """One gate at the threshold chosen on dev; ``calibration`` by the name of each definition."""

    gate: str
    threshold: float
    threshold_rule: Rule
    retrieval_ratio: float
    definitions: list[Classification]
    calibration: dict[str, Calibrated] = field(default_factory=dict)


def classify_gates(
    dev: Sequence[Outcome],
    test: Sequence[Outcome],
    gates: Sequence[GateInput],
    *,
    tau_mastery: float,
    rule: Rule,
    target_ratio: float,
) -> list[GateClassification]:
    """``needed``, ``llm_greedy_wrong``, and ``unmastered`` where all test questions were sampled."""
    truths = _truths(test, tau_mastery)
    taught = dict(_truths(dev, tau_mastery))
    found = []
    for gate in gates:
        decision = decide(gate, dev, rule, target_ratio)
        if decision.threshold is None:
            raise ValueError(f"gate {gate.name!r} has no threshold to choose")
        retrieved = decision.retrieve > 0.5
        definitions = [classify(name, truth, gate.test, retrieved) for name, truth in truths]
        probable = {
            name: calibrated(taught[name], gate.dev, truth, gate.test) for name, truth in truths if name in taught
        }
        ratio = float(retrieved.mean())
        found.append(GateClassification(gate.name, decision.threshold.value, rule, ratio, definitions, probable))
    return found


def _truths(outcomes: Sequence[Outcome], tau_mastery: float) -> list[tuple[str, Bools]]:
    """Every definition of "retrieval needed" that the stored answers allow, by name."""
    truths = [("needed", oc.needed(outcomes)), oc.unmastered(outcomes, tau_mastery)]
    if truths[1][0] == "unmastered":
        truths.insert(1, oc.greedy_wrong(outcomes))
    return truths
