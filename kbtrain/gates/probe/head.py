"""Linear heads on states: ridge or logistic regression, averaged over layers.

A layer's penalty, and the layers themselves, are chosen by cross-validation on the training questions alone, in which
questions about one entity are held out together. Soft labels are shares in [0, 1]; a hard one is 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from kbtrain.arrays import Floats, States
from kbtrain.gates.features.additive import share_log_odds
from kbtrain.runtime.cores import one_thread
from kbtrain.training.folds import folds, members

Method = Literal["ridge", "logistic"]
PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # of ridge, per question and feature of unit variance
STRENGTHS = (1e-4, 1e-3, 1e-2)  # C of the logistic regression
AVERAGES = (1, 2, 4, 8)  # numbers of layers that are tried together


@dataclass(frozen=True)
class LayerFit:
    """One layer's fit. ``tried``: by penalty its cross-validated predictions (n,);
    ``penalty``: the one whose predictions follow the labels best, ``held_out`` their correlation with them, -1 to 1."""

    layer: int
    held_out: float
    penalty: float
    tried: Mapping[float, Floats] = field(repr=False, compare=False)

    @property
    def predicted(self) -> Floats:
        """(n,) cross-validated predictions by :attr:`penalty`."""
        return self.tried[self.penalty]


@dataclass(frozen=True)
class Head:
    """Prediction = ``intercept`` + sum over ``layers`` of ``weight`` (layers, d) times the states; fp32.

    Of ridge it estimates the label itself, of the logistic regression its log odds.
    """

    layers: tuple[int, ...]
    weight: States
    intercept: float

    def predict(self, states: States) -> Floats:
        """(n,) from states (n, layers, d) of :attr:`layers`."""
        flat = states.reshape(len(states), -1).astype(np.float64)
        predicted: Floats = flat @ self.weight.reshape(-1).astype(np.float64) + self.intercept
        return predicted


@one_thread()
def fit_layers(
    method: Method,
    layers: Sequence[int],
    read: Callable[[int], Floats],
    labels: Sequence[Floats],
    groups: Sequence[int] | None = None,
) -> list[list[LayerFit]]:
    """Cross-validated fits of all layers to each of ``labels`` (n,); ``read(layer)`` gives its states (n, d).

    ``groups`` (n,), as of :func:`~kbtrain.training.folds.groups_of`, are held out whole; None: each question is one.
    """
    row_groups = range(len(labels[0])) if groups is None else groups
    fits: list[list[LayerFit]] = [[] for _ in labels]
    for layer in layers:
        features = scaled(read(layer))[0]
        for values, tried, into in zip(labels, _left_out_of(method, features, labels, row_groups), fits, strict=True):
            into.append(_best_penalty(layer, tried, values))
    return fits


@one_thread()
def fit_head(
    method: Method, fits: Sequence[LayerFit], n_layers: int | None, read: Callable[[int], Floats], labels: Floats
) -> Head:
    """The average of the ``n_layers`` heads whose cross-validated predictions follow the labels best.

    None: as many of :data:`AVERAGES` as together follow them best, cross-validated.
    """
    chosen = sorted(_best_layers(fits, n_layers, labels), key=lambda fit: fit.layer)
    weights, intercept = [], 0.0
    for fit in chosen:
        features, mean, spread = scaled(read(fit.layer))
        slope, start = _fit(method, features, labels, fit.penalty)
        weights.append(slope / spread)
        intercept += start - float(slope / spread @ mean)
    weight = (np.stack(weights) / len(chosen)).astype(np.float32)
    return Head(tuple(fit.layer for fit in chosen), weight, intercept / len(chosen))


def left_out(
    method: Method,
    layers: Sequence[int],
    n_layers: int | None,
    read: Callable[[int], Floats],
    labels: Sequence[Floats],
    groups: Sequence[int] | None = None,
) -> list[Floats]:
    """(n,) predictions for each of ``labels``: a fold's by a head fitted and chosen on the other folds alone.

    This is nested cross-validation. Layers and penalties are chosen in folds of the other folds: a choice that has seen
    a question's label flatters its held-out prediction, on few questions by as much as a weak gate knows.

    The mean label is that of all questions. That of the other folds falls where a fold's own rises: it would order the
    folds against their labels.
    """
    row_groups = range(len(labels[0])) if groups is None else groups
    predicted = [np.zeros(len(values)) for values in labels]
    drawn = folds(row_groups, seed=0)
    for others, held in drawn:
        part = lambda layer, others=others: read(layer)[others]  # noqa: E731
        taught = [values[others] for values in labels]
        every = fit_layers(method, layers, part, taught, [row_groups[place] for place in others])
        for fits, values, into in zip(every, taught, predicted, strict=True):
            head = fit_head(method, fits, n_layers, part, values)
            into[held] = head.predict(np.stack([read(layer)[held] for layer in head.layers], axis=1))
    for values, into in zip(labels, predicted, strict=True):
        for others, held in drawn:
            into[held] += _level(method, values) - _level(method, values[others])
    return predicted


def _level(method: Method, labels: Floats) -> float:
    """Prediction of a head that knows the mean label alone."""
    return float(labels.mean()) if method == "ridge" else share_log_odds(labels.tolist())


def _best_layers(fits: Sequence[LayerFit], n_layers: int | None, labels: Floats) -> list[LayerFit]:
    """Those that follow the labels best; None: as many as together follow them best."""
    ranked = sorted(fits, key=lambda fit: (-fit.held_out, fit.layer))
    if n_layers is None:
        counts = [n for n in AVERAGES if n <= len(ranked)]
        together = {n: _correlation(np.mean([fit.predicted for fit in ranked[:n]], axis=0), labels) for n in counts}
        n_layers = max(together, key=lambda n: together[n])
    return ranked[:n_layers]


def scaled(states: Floats) -> tuple[Floats, Floats, Floats]:
    """States of mean 0 and variance 1 in each of d numbers, which they had: (n, d), means (d,), deviations (d,)."""
    states = np.asarray(states, dtype=np.float64)
    mean, spread = states.mean(0), states.std(0)
    spread = np.where(spread > 1e-6 * max(float(spread.max()), 1e-12), spread, np.inf)  # a constant one says nothing
    return (states - mean) / spread, mean, spread


def _left_out_of(
    method: Method, features: Floats, labels: Sequence[Floats], groups: Sequence[int]
) -> list[dict[float, Floats]]:
    """For each of ``labels`` the cross-validated predictions (n,) by penalty."""
    if method == "ridge":
        return _ridge_left_out(features, labels, groups)
    drawn = folds(groups, seed=0)
    return [
        {penalty: _in_folds(method, features, values, penalty, drawn) for penalty in STRENGTHS} for values in labels
    ]


def _best_penalty(layer: int, tried: Mapping[float, Floats], labels: Floats) -> LayerFit:
    """The penalty whose predictions follow the labels best."""
    by_penalty = {penalty: _correlation(predicted, labels) for penalty, predicted in tried.items()}
    best = max(by_penalty, key=lambda penalty: by_penalty[penalty])
    return LayerFit(layer, by_penalty[best], best, tried)


def _ridge_left_out(features: Floats, labels: Sequence[Floats], groups: Sequence[int]) -> list[dict[float, Floats]]:
    """Predictions of each question by the ridge regression on all other groups, for all labels and penalties.

    In closed form, from one eigendecomposition: with the hat matrix H (n, n) of the fit to all, the residuals of a
    group that is held out are (1 - H_gg)^-1 times those of the fit to all (of a single question: residual / (1 - h)).
    """
    base, values = _principal(features)
    truth = np.stack(labels, axis=1)  # (n, labels)
    n, along = len(truth), base.T @ truth
    together = members(groups)
    single = [group[0] for group in together if len(group) == 1]
    predictions: list[dict[float, Floats]] = [{} for _ in labels]
    for penalty in PENALTIES:
        shrinkage = values / (values + penalty * features.shape[1])
        residual = truth - truth.mean(0) - base @ (shrinkage[:, None] * along)
        # the intercept's own part of H is 1/n everywhere: it carries no penalty
        residual[single] /= (1 - 1 / n - (base[single] ** 2 @ shrinkage))[:, None]
        for group in together:
            if len(group) > 1:
                block = np.eye(len(group)) - 1 / n - (base[group] * shrinkage) @ base[group].T
                residual[group] = np.linalg.solve(block, residual[group])
        for into, predicted in zip(predictions, (truth - residual).T, strict=True):
            into[penalty] = predicted
    return predictions


def _principal(features: Floats) -> tuple[Floats, Floats]:
    """Orthonormal columns (n, r) that span the features' and their eigenvalues (r,), of the smaller Gram matrix."""
    n, d = features.shape
    values, vectors = np.linalg.eigh(features @ features.T if n <= d else features.T @ features)
    used = values > 1e-10 * max(float(values[-1]), 1e-12)
    values, vectors = values[used], vectors[:, used]
    return (vectors if n <= d else features @ vectors / np.sqrt(values)), values


def _in_folds(
    method: Method, features: Floats, labels: Floats, penalty: float, drawn: Sequence[tuple[list[int], list[int]]]
) -> Floats:
    predicted = np.zeros(len(labels))
    for fitted, left in drawn:
        slope, start = _fit(method, features[fitted], labels[fitted], penalty)
        predicted[left] = features[left] @ slope + start
    return predicted


def _fit(method: Method, features: Floats, labels: Floats, penalty: float) -> tuple[Floats, float]:
    """Slopes (d,) and intercept on scaled states."""
    if method == "ridge":
        base, values = _principal(features)
        along = base.T @ (labels - labels.mean()) / (values + penalty * features.shape[1])
        return features.T @ (base @ along), float(labels.mean())
    from sklearn.linear_model import LogisticRegression

    # a soft label is both labels, each with its share
    both, shares = np.repeat([1, 0], len(labels)), np.concatenate([labels, 1 - labels])
    odds = LogisticRegression(C=penalty, max_iter=2000).fit(np.vstack([features] * 2), both, sample_weight=shares)
    return odds.coef_[0], float(odds.intercept_[0])


def _correlation(predicted: Floats, labels: Floats) -> float:
    if predicted.std() == 0 or labels.std() == 0:  # all folds but one may have a single label
        return 0.0
    return float(np.corrcoef(predicted, labels)[0, 1])
