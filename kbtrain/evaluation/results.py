"""What an end-to-end evaluation finds out, as it stands in ``results.json`` (``gates`` and ``comparisons``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbtrain.evaluation.outcomes import AccuracyKind
from kbtrain.metrics.classification import Classification
from kbtrain.metrics.hypothesis_tests import McNemar
from kbtrain.metrics.significance import Delta
from kbtrain.metrics.thresholds import Rule


@dataclass(frozen=True)
class RandomDraws:
    """Accuracies of ``draws`` random gates with the same number of searches: mean and 2.5 % to 97.5 %."""

    draws: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Point:
    """One gate at one threshold, measured by one kind of accuracy (share of questions answered right, 0 to 1).

    ``random_accuracy`` is the expected accuracy of a random gate with the same retrieval ratio; ``p_vs_random`` the
    permutation test's p-value against random gates, resolved to 1 / (draws + 1).
    """

    accuracy_kind: AccuracyKind
    accuracy: float
    retrieval_ratio: float
    random_accuracy: float
    delta_vs_random: Delta
    delta_vs_llm_only: Delta
    delta_vs_all_rag: Delta
    random_draws: RandomDraws
    p_vs_random: float | None = None


@dataclass(frozen=True)
class Ranking:
    """A gate's order of the questions, at all thresholds at once: its curve at 101 ratios, and the area under it.

    ``area`` is the oracle-normalised area with its 95 % interval; None where the oracle gains nothing.
    """

    area: Delta | None
    ratio: list[float]
    accuracy: list[float]


@dataclass(frozen=True)
class RulePoint:
    """What another threshold rule (always chosen on dev) would have given."""

    rule: Rule
    threshold: float
    accuracy: float
    retrieval_ratio: float
    random_accuracy: float
    delta_vs_random: Delta


@dataclass(frozen=True)
class Cost:
    """What a gate's decisions cost over all ``n`` questions.

    ``llm_requests`` = answers + requests of the gate itself (one forward pass, no token generated);
    ``generated_tokens`` are those of the greedy answers that were used; ``gate_seconds`` were measured while scoring.
    A gate that samples answers (SeaKR) says so in ``gate_samples``, and in ``gate_tokens`` what it generated.
    """

    searches: int
    llm_requests: int
    gate_requests: int
    generated_tokens: int
    gate_seconds: float
    gate_samples: int = 0
    gate_tokens: int = 0


@dataclass(frozen=True)
class GateResult:
    """One gate. The flat classification metrics are those of the positive class ``needed``.

    ``p_vs_random_holm``: ``p_vs_random`` after Holm's correction over all gates with a threshold chosen on dev.
    """

    gate: str
    n: int
    threshold: float | None
    threshold_rule: Rule | None
    n_dev: int
    accuracy_kind: AccuracyKind
    accuracy: float
    retrieval_ratio: float
    random_accuracy: float
    delta_vs_random: Delta
    delta_vs_llm_only: Delta
    delta_vs_all_rag: Delta
    random_draws: RandomDraws
    beats_random: bool
    auroc: float | None
    average_precision: float | None
    precision: float | None
    recall: float | None
    f1: float | None
    fdr: float | None
    oracle_normalised_area: float | None
    cost: Cost
    needed: Classification
    unmastered: Classification
    curve: Ranking
    other_accuracy: list[Point] = field(default_factory=list)
    other_area: list[Ranking] = field(default_factory=list)
    rules: list[RulePoint] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    p_vs_random: float | None = None
    p_vs_random_holm: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Two gates on the same questions: ``accuracy`` is the plain difference; ``gain`` the difference of what each
    gains over random at its own ratio (fair when they retrieve differently often); ``area`` that of their areas;
    ``ratio`` that of their retrieval ratios. ``mcnemar`` tests the accuracies, Holm over all gates against ``other``.
    """

    gate: str
    other: str
    accuracy: Delta
    gain: Delta
    area: Delta | None
    ratio: Delta | None = None
    mcnemar: McNemar | None = None
