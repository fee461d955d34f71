"""Metrics of scores and decisions against the truth: one function and one line each.

A metric is computed for many weightings of the questions at once, so that intervals need no second definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kbtrain.arrays import Bools, Floats
from kbtrain.metrics.ranking import auroc, average_precision


@dataclass(frozen=True)
class MetricInput:
    """``truth`` and ``retrieved`` (n,), ``scores`` (n,), higher = retrieve; ``weights`` (rows, n) of the questions."""

    truth: Bools
    scores: Floats
    retrieved: Bools
    weights: Floats

    def weight_of(self, questions: Bools) -> Floats:
        """Weight of some questions, by row."""
        return np.asarray(self.weights @ questions.astype(float))

    @property
    def hits(self) -> Floats:
        """Weight of what was retrieved and needed it, by row."""
        return self.weight_of(self.truth & self.retrieved)


@dataclass(frozen=True)
class Metric:
    """``of``: one value a row of the weights, NaN where it is undefined. ``title``: a column's heading.

    ``undefined``: the value that counts in a mean over dialogues where ``of`` has none; NaN leaves the row out.
    """

    title: str
    of: Callable[[MetricInput], Floats]
    undefined: float = np.nan

    def fill(self, decided: MetricInput) -> Floats:
        """The values, with ``undefined`` in place of NaN."""
        values = self.of(decided)
        return np.where(np.isnan(values), self.undefined, values)


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    undefined = np.full(len(numerator), np.nan)
    return np.asarray(np.divide(numerator, denominator, out=undefined, where=denominator > 0))


def precision(decided: MetricInput) -> Floats:
    """Share of the retrieved that needs it."""
    return _ratio(decided.hits, decided.weight_of(decided.retrieved))


def recall(decided: MetricInput) -> Floats:
    """Share of what needs retrieval that is retrieved."""
    return _ratio(decided.hits, decided.weight_of(decided.truth))


def f1(decided: MetricInput) -> Floats:
    """Harmonic mean of precision and recall."""
    return _ratio(2 * decided.hits, decided.weight_of(decided.truth) + decided.weight_of(decided.retrieved))


METRICS: dict[str, Metric] = {
    "precision": Metric("precision", precision, 0.0),
    "recall": Metric("recall", recall, 0.0),
    "f1": Metric("F1", f1, 0.0),
    "auroc": Metric("AUC", lambda data: auroc(data.truth, data.scores, data.weights)),
    "average_precision": Metric("AP", lambda data: average_precision(data.truth, data.scores, data.weights)),
    "fdr": Metric("FDR", lambda data: 1 - precision(data), 1.0),
}


@dataclass(frozen=True)
class Classification:
    """Metrics of the positive class ``positive`` among ``n`` questions; None where undefined, with the reason.

    ``fdr`` = 1 - precision (share of unneeded retrievals). ``average_precision`` and ``auroc`` look at the
    scores, the others at the decisions.
    """

    positive: str
    n: int
    n_positive: int
    precision: float | None
    recall: float | None
    f1: float | None
    fdr: float | None
    auroc: float | None
    average_precision: float | None
    reasons: dict[str, str] = field(default_factory=dict)


def classify(positive: str, truth: Bools, scores: Floats, retrieved: Bools) -> Classification:
    """Compare scores and decisions (both: higher / True = retrieve) with ``truth``."""
    n_positive, values = int(truth.sum()), _values(truth, scores, retrieved, own=True)
    if n_positive == len(truth):  # no order of one class
        values["average_precision"] = None
    return Classification(positive, len(truth), n_positive, **values, reasons=_reasons(truth, retrieved))


def further_metrics(truth: Bools, scores: Floats, retrieved: Bools) -> dict[str, float | None]:
    """Registered metrics beside those of :class:`Classification`; None where undefined."""
    return _values(truth, scores, retrieved, own=False)


def _values(truth: Bools, scores: Floats, retrieved: Bools, own: bool) -> dict[str, float | None]:
    """The metrics that are fields of :class:`Classification`, or (not ``own``) the others."""
    decided = MetricInput(truth, scores, retrieved, np.ones((1, len(truth))))
    names = [name for name in METRICS if (name in Classification.__dataclass_fields__) == own]
    values = {name: float(METRICS[name].of(decided)[0]) for name in names}
    return {name: None if math.isnan(value) else value for name, value in values.items()}


_FLOOR = 1e-6  # a probability of exactly 0 or 1 would make the log loss infinite


def log_loss(targets: Sequence[float], probabilities: Sequence[float]) -> float:
    """Mean cross-entropy in nats of probabilities (clipped to [1e-6, 1 - 1e-6]) against hard or soft targets."""
    clipped = [min(max(p, _FLOOR), 1 - _FLOOR) for p in probabilities]
    losses = [-t * math.log(p) - (1 - t) * math.log(1 - p) for t, p in zip(targets, clipped, strict=True)]
    return math.fsum(losses) / len(losses)


def expected_at_random(positive: str, truth: Bools, ratio: float) -> Classification:
    """Expected metrics of retrieving this ratio of the questions at random.

    Precision is the share of positives, recall the ratio; the ranking metrics are those of equal scores.
    """
    share = float(truth.mean())
    total, reasons = share + ratio, _reasons(truth, np.array([ratio > 0]))
    f1, fdr = 2 * share * ratio / total if total else None, 1 - share if ratio else None
    precision, recall = share if ratio else None, ratio if share else None
    auroc, ap = (0.5, share) if 0 < share < 1 else (None, None)
    return Classification(positive, len(truth), int(truth.sum()), precision, recall, f1, fdr, auroc, ap, reasons)


def _reasons(truth: Bools, retrieved: Bools) -> dict[str, str]:
    """The reason for each metric that is None."""
    reasons: dict[str, str] = {}
    if not truth.any() or truth.all():
        text = "no question is positive" if not truth.any() else "every question is positive"
        reasons |= dict.fromkeys(("auroc", "average_precision"), text)
    if not truth.any():
        reasons["recall"] = "no question is positive"
    if not retrieved.any():
        reasons |= dict.fromkeys(("precision", "fdr"), "no question is retrieved")
    if not truth.any() and not retrieved.any():
        reasons["f1"] = "no question is positive or retrieved"
    return reasons
