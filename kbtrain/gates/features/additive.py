"""Additive logistic regression: log odds = intercept + a piecewise linear function of each feature.

It is fitted by hat functions at the features' quantiles and a logistic regression, whose penalty a cross-validation on
the training questions alone chooses, and kept as numbers: each function by its knots and its values there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from kbtrain.arrays import Floats
from kbtrain.errors import UserError
from kbtrain.runtime.cores import one_thread
from kbtrain.training.folds import folds

Row = Mapping[str, float]
LEAST = 20  # training questions; below it a cross-validation is noise
STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # C of the logistic regression: the inverse of the penalty
KNOTS = 5  # of each feature's curve
FEWEST = 5  # rows that have a feature; others are skipped
_FLAT, _STEPS = 1e-6, 100  # largest gradient a question at which a fit ends, and most steps of it
GRAM, BUCKETS = "gram_", 256  # features "gram_0" to "gram_255": a row has those that are not 0


class NothingToLearn(UserError):
    """All questions have one label, or are equal in all that is read of them."""


class FeatureCurve(BaseModel):
    """A function of one feature: straight lines between ``knots`` (ascending), constant outside them."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    knots: tuple[float, ...] = Field(min_length=1)
    values: tuple[float, ...]

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if len(self.values) != len(self.knots) or any(a >= b for a, b in zip(self.knots, self.knots[1:], strict=False)):
            raise ValueError("expected knots that ascend, and a value at each")
        return self


class Additive(BaseModel):
    """``curves`` by the feature's name; ``grams``: weights of the features :data:`GRAM`, straight lines; ``strength``
    is the C that was chosen."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    intercept: float
    curves: dict[str, FeatureCurve]
    strength: float
    grams: tuple[float, ...] = ()

    @model_serializer(mode="wrap")
    def _without_empty_grams(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        return {name: value for name, value in fields.items() if name != "grams" or value}

    def log_odds(self, rows: Sequence[Row]) -> list[float]:
        total = np.full(len(rows), self.intercept)
        for name, curve in self.curves.items():
            total += np.interp([row.get(name, 0.0) for row in rows], curve.knots, curve.values)
        if self.grams:
            total += gram_table(rows) @ self.grams
        return [float(value) for value in total]


def gram_table(rows: Sequence[Row]) -> Floats:
    """(rows, :data:`BUCKETS`): the features :data:`GRAM`, 0 where a row has none."""
    table = np.zeros((len(rows), BUCKETS))
    for i, row in enumerate(rows):
        for name, value in row.items():
            if name.startswith(GRAM):
                table[i, int(name.removeprefix(GRAM))] = value
    return table


def check_need(need: Sequence[float], what: str) -> None:
    """Raise :class:`UserError` for labels from which nothing can be learnt; ``what`` begins the message."""
    if len(need) < LEAST:
        raise UserError(f"{what}: {len(need)} labelled training questions, needs {LEAST} at least; label more")
    if len(set(need)) < 2:
        raise UserError(f"{what}: all {len(need)} training questions have the label {need[0]:g}; nothing to learn")


def check_both(need: Sequence[float]) -> None:
    """Raise :class:`NothingToLearn` for labels that are all 0 or all 1."""
    if sum(need) in (0, len(need)):
        raise NothingToLearn(f"all {len(need)} questions have the label {need[0]:g}; nothing to learn")


def share_log_odds(need: Sequence[float]) -> float:
    """Log odds of the mean label, finite also where all are equal: half a question of either label counts as well."""
    return math.log(sum(need) + 0.5) - math.log(len(need) - sum(need) + 0.5)


@one_thread()
def fit_additive(
    rows: Sequence[Row], need: Sequence[float], seed: int = 0, groups: Sequence[int] | None = None
) -> Additive:
    """``need``: probability in [0, 1] of each row that retrieval is needed. Features that never vary are skipped, and
    a row counts as 0 in one that it does not have (a source).

    The penalty is chosen by cross-validation that keeps ``groups`` whole; None: each row is one. Raises
    :class:`NothingToLearn`.
    """
    labels = np.asarray(need, dtype=np.float64)
    check_both(need)
    counts = Counter(name for row in rows for name in row if not name.startswith(GRAM))
    columns = {name: np.array([row.get(name, 0.0) for row in rows]) for name, n in counts.items() if n >= FEWEST}
    quantiles = np.linspace(0, 1, KNOTS)  # of a feature's values; its knots are those that differ
    knots = {name: np.unique(np.quantile(values, quantiles)) for name, values in columns.items()}
    knots = {name: places for name, places in knots.items() if len(places) > 1}
    # a column a knot: 1 there, 0 at all others, straight between them
    parts = [
        np.stack([np.interp(columns[name], places, heights) for heights in np.eye(len(places))], axis=1)
        for name, places in knots.items()
    ]
    if not parts:
        raise NothingToLearn("no feature varies among the training questions; there is nothing to learn")
    grams = gram_table(rows)
    hats = np.hstack([*parts, grams] if grams.any() else parts)
    # no slope leaves the span of the rows: in its coordinates, at most as many as there are rows, a fit is quick
    basis, coordinates = np.linalg.qr(hats.T)
    strength = least_loss(STRENGTHS, coordinates.T, labels, seed, groups)
    slopes, intercept = fit_logistic(coordinates.T, labels, strength)
    *heights, spelling = np.split(basis @ slopes, np.cumsum([len(places) for places in knots.values()]))
    curves = {
        name: FeatureCurve(knots=tuple(places.tolist()), values=tuple(values.tolist()))
        for (name, places), values in zip(knots.items(), heights, strict=True)
    }
    weights = tuple(round(float(weight), 5) for weight in spelling)
    return Additive(intercept=intercept, curves=curves, strength=strength, grams=weights)


def held_out_log_odds(
    rows: Any,
    need: Sequence[float],
    seed: int = 0,
    groups: Sequence[int] | None = None,
    fit: Callable[..., Any] = fit_additive,
    pick: Callable[[Any, Sequence[int]], Any] = lambda rows, places: [*map(rows.__getitem__, places)],
) -> list[float]:
    """Log odds of each question by a model that ``fit`` fits, penalty and knots included, to the questions of the other
    folds, which ``pick`` takes out of the rows; where these teach nothing, the log odds of their share.

    They are moved to the share of all questions: that of the others falls where the fold's own rises, and would order
    the folds against their labels.
    """
    row_groups = range(len(need)) if groups is None else groups
    log_odds, level = [0.0] * len(need), share_log_odds(need)
    for others, held in folds(row_groups, seed):
        labels = [need[i] for i in others]
        of_others = share_log_odds(labels)
        try:
            values = fit(pick(rows, others), labels, seed, [row_groups[i] for i in others]).log_odds(pick(rows, held))
        except NothingToLearn:
            values = [of_others] * len(held)
        for i, value in zip(held, values, strict=True):
            log_odds[i] = value + level - of_others
    return log_odds


def fit_logistic(features: Floats, need: Floats, strength: float) -> tuple[Floats, float]:
    """Slopes (d,) and intercept of the logistic regression on soft labels with C = ``strength``, by Newton's method."""
    # not by scikit-learn: loading it takes as long as all else here, and its checks longer than these small fits
    n, d = features.shape
    table, penalty = np.column_stack([features, np.ones(n)]), np.append(np.full(d, 1 / strength), 0.0)
    line, gradient = np.zeros(d + 1), table.T @ (0.5 - need)
    shares = np.full(n, 0.5)
    for _ in range(_STEPS):
        curvature = (table.T * (shares * (1 - shares))) @ table
        curvature.flat[:: d + 2] += penalty
        step = np.linalg.solve(curvature, gradient)
        before = _penalised_loss(table @ line, need, line, penalty)
        while _penalised_loss(table @ (line - step), need, line - step, penalty) > before + _FLAT:
            step /= 2
        line = line - step
        shares = 0.5 + 0.5 * np.tanh(0.5 * (table @ line))
        gradient = table.T @ (shares - need) + penalty * line
        if max(np.abs(gradient).max(), step @ curvature @ step / 2) <= _FLAT * n:
            break
    return line[:-1], float(line[-1])


def _penalised_loss(odds: Floats, need: Floats, line: Floats, penalty: Floats) -> float:
    return float((np.logaddexp(0, odds) - need * odds).sum() + penalty @ line**2 / 2)


def least_loss(
    strengths: Sequence[float], features: Floats, need: Floats, seed: int, groups: Sequence[int] | None = None
) -> float:
    """C of the least cross-validated log loss."""
    drawn = folds(range(len(need)) if groups is None else groups, seed)
    return min(strengths, key=lambda strength: _loss(features, need, strength, drawn))


def _loss(features: Floats, need: Floats, strength: float, drawn: Sequence[tuple[list[int], list[int]]]) -> float:
    total = 0.0
    for fit, rest in drawn:
        if len(set(need[fit])) < 2:
            continue
        slopes, intercept = fit_logistic(features[fit], need[fit], strength)
        odds = features[rest] @ slopes + intercept
        total += float(np.sum(np.logaddexp(0, odds) - need[rest] * odds))
    return total
