"""How good a classifying gate's scores are on dev, and where to cut them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kbtrain.metrics.classification import classify
from kbtrain.metrics.thresholds import Dev, Threshold, choose

_FLOOR = 1e-6  # a probability of exactly 0 or 1 would make the log loss infinite


def best_f1_threshold(need: Sequence[float], scores: Sequence[float]) -> Threshold:
    """The cut with the best F1 of "retrieval needed" on dev; of equals, the one with the fewest retrievals."""
    truth = np.asarray(need) > 0.5
    nothing = np.zeros(len(truth))
    return choose("best_f1", Dev(np.asarray(scores, dtype=float), nothing, nothing, truth.astype(float)))


def classifier_metrics(need: Sequence[float], scores: Sequence[float]) -> dict[str, float]:
    """``loss`` (nats), ``auroc``, ``average_precision``, and ``f1`` at its best cut of these very examples.

    ``f1`` is for choosing between checkpoints on dev; it is no estimate of F1 elsewhere.
    """
    p = np.clip(np.asarray(scores, dtype=float), _FLOOR, 1 - _FLOOR)
    target = np.asarray(need, dtype=float)
    loss = float(-(target * np.log(p) + (1 - target) * np.log(1 - p)).mean())
    truth = target > 0.5
    found = classify("needed", truth, p, p > best_f1_threshold(need, list(p)).value)
    values = {"auroc": found.auroc, "average_precision": found.average_precision, "f1": found.f1}
    return {"loss": loss} | {name: value for name, value in values.items() if value is not None}
