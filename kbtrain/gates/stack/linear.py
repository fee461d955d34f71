"""Logistic regression on other gates' scores: few weights, kept as numbers.

A score that lies in [0, 1] in all training questions enters as log odds; scores outside the range of the training
questions count as its end. All are put on mean 0 and deviation 1, so that the penalty means the same for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from kbtrain.gates.features.additive import NothingToLearn, check_both, fit_logistic, held_out, least_loss
from kbtrain.runtime.cores import one_thread

Columns = Mapping[str, Sequence[float]]  # scores by name
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # C of the logistic regression
_CLIP = 1e-3  # probabilities nearer to 0 or 1 count as this


class Input(BaseModel):
    """One score: clipped to ``low`` and ``high``, as log odds if ``log_odds``, times ``slope``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    low: float
    high: float
    log_odds: bool
    slope: float

    def value(self, score: float) -> float:
        """The score as it enters, before the slope."""
        value = min(max(score, self.low), self.high)
        if not self.log_odds:
            return value
        p = min(max(value, _CLIP), 1 - _CLIP)
        return math.log(p) - math.log1p(-p)

    def log_odds_range(self) -> float:
        """Change of the log odds between the ends of the score's range."""
        return self.slope * (self.value(self.high) - self.value(self.low))


class Linear(BaseModel):
    """Log odds = ``intercept`` + the sum over ``inputs``; ``strength`` is the C that was chosen."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    intercept: float
    inputs: dict[str, Input]
    strength: float

    def log_odds(self, columns: Columns) -> list[float]:
        """Of each question."""
        n = len(next(iter(columns.values())))
        return [
            self.intercept + math.fsum(term.slope * term.value(columns[name][i]) for name, term in self.inputs.items())
            for i in range(n)
        ]


@one_thread()
def fit_linear(columns: Columns, need: Sequence[float], seed: int = 0, groups: Sequence[int] | None = None) -> Linear:
    """``need``: probability in [0, 1] of each question that retrieval is needed. The penalty is chosen by
    cross-validation that keeps ``groups`` whole; None: each question is one.

    Raises :class:`NothingToLearn` if no score varies.
    """
    labels = np.asarray(need, dtype=np.float64)
    check_both(need)
    shapes = {name: _shape(values) for name, values in columns.items()}
    shapes = {name: shape for name, shape in shapes.items() if shape.value(shape.low) < shape.value(shape.high)}
    if not shapes:
        raise NothingToLearn("no member's score varies among the training questions; there is nothing to learn")
    table = np.array([[shape.value(value) for value in columns[name]] for name, shape in shapes.items()]).T
    mean, spread = table.mean(0), table.std(0)
    scaled = (table - mean) / spread
    strength = least_loss(STRENGTHS, scaled, labels, seed, groups)
    scaled_slopes, intercept = fit_logistic(scaled, labels, strength)
    slopes = scaled_slopes / spread
    inputs = {
        name: shape.model_copy(update={"slope": float(slope)})
        for (name, shape), slope in zip(shapes.items(), slopes, strict=True)
    }
    return Linear(intercept=intercept - float(slopes @ mean), inputs=inputs, strength=strength)


def held_out_log_odds(
    columns: Columns, need: Sequence[float], seed: int = 0, groups: Sequence[int] | None = None
) -> list[float]:
    """Log odds of each question by a regression fitted to the questions of the other folds; where these teach nothing,
    of their share."""
    row_groups = range(len(need)) if groups is None else groups

    def log_odds(fit: Sequence[int], rest: Sequence[int]) -> Sequence[float]:
        model = fit_linear(_rows(columns, fit), [need[i] for i in fit], seed, [row_groups[i] for i in fit])
        return model.log_odds(_rows(columns, rest))

    return held_out(log_odds, need, row_groups, seed)


def _rows(columns: Columns, places: Sequence[int]) -> Columns:
    return {name: [values[i] for i in places] for name, values in columns.items()}


def _shape(values: Sequence[float]) -> Input:
    low, high = min(values), max(values)
    return Input(low=low, high=high, log_odds=low >= 0 and high <= 1, slope=0.0)
