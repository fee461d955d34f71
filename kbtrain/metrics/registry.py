"""Metrics of scores and decisions against the truth: one function and one line each.

A metric is computed for many weightings of the questions at once, so that intervals need no second definition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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

    @property
    def hits(self) -> Floats:
        """Weight of what was retrieved and needed it, by row."""
        return np.asarray(self.weights @ (self.truth & self.retrieved).astype(float))

    @property
    def n_positive(self) -> Floats:
        """Weight of what needs retrieval, by row."""
        return np.asarray(self.weights @ self.truth.astype(float))

    @property
    def n_retrieved(self) -> Floats:
        """Weight of what was retrieved, by row."""
        return np.asarray(self.weights @ self.retrieved.astype(float))


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
    return _ratio(decided.hits, decided.n_retrieved)


def recall(decided: MetricInput) -> Floats:
    """Share of what needs retrieval that is retrieved."""
    return _ratio(decided.hits, decided.n_positive)


def f1(decided: MetricInput) -> Floats:
    """Harmonic mean of precision and recall."""
    return _ratio(2 * decided.hits, decided.n_positive + decided.n_retrieved)


METRICS: dict[str, Metric] = {
    "precision": Metric("precision", precision, 0.0),
    "recall": Metric("recall", recall, 0.0),
    "f1": Metric("F1", f1, 0.0),
    "auroc": Metric("AUC", lambda data: auroc(data.truth, data.scores, data.weights)),
    "average_precision": Metric("AP", lambda data: average_precision(data.truth, data.scores, data.weights)),
    "fdr": Metric("FDR", lambda data: 1 - precision(data), 1.0),
}
