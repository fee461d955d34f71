"""The map from a gate's score to the probability that a search helps and to the expected gain, fitted on dev."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kbtrain.arrays import Floats
from kbtrain.evaluation.outcomes import Correctness
from kbtrain.gate.card import Outlook
from kbtrain.metrics.calibration import calibration, is_probability

LEAST = 50  # dev questions; fewer teach no map
FOLDS = 5


def fit_outlook(scores: Floats, answers: Correctness, groups: Sequence[str], tokens: float | None) -> Outlook | None:
    """Two isotonic regressions on dev: of "right with passages, wrong without", and of the difference of the answers.

    ``groups``: questions of one entity share a fold, by which the calibration error afterwards is cross-fitted.
    ``tokens``: mean of the prompt tokens that passages add. None for fewer than :data:`LEAST` questions, and where a
    search helps for none or for all.
    """
    helps, gain = answers.rag * (1 - answers.llm), answers.rag - answers.llm
    if len(scores) < LEAST or not 0 < helps.mean() < 1:
        return None
    grid, chance = _isotonic(scores, helps, 0.0)
    other, expected = _isotonic(scores, gain, -1.0)
    knots = np.union1d(grid, other)
    return Outlook(
        n=len(scores),
        scores=_rounded(knots),
        helps=_rounded(np.interp(knots, grid, chance)),
        gain=_rounded(np.interp(knots, other, expected)),
        ece_before=_error(helps, scores) if is_probability(scores) else None,
        ece=_cross_fitted_error(scores, helps, groups),
        search_tokens=None if tokens is None else round(tokens, 1),
    )


def _isotonic(scores: Floats, values: Floats, low: float) -> tuple[Floats, Floats]:
    """The knots of the best non-decreasing function, in [``low``, 1]; it is linear between them."""
    from sklearn.isotonic import IsotonicRegression

    model = IsotonicRegression(y_min=low, y_max=1, out_of_bounds="clip").fit(scores, values)
    return np.asarray(model.X_thresholds_, dtype=np.float64), np.asarray(model.y_thresholds_, dtype=np.float64)


def _cross_fitted_error(scores: Floats, helps: Floats, groups: Sequence[str]) -> float | None:
    """Calibration error of maps that were fitted without the question's fold; None for too few groups."""
    from sklearn.model_selection import GroupKFold

    if len(set(groups)) < FOLDS:
        return None
    predicted = np.zeros(len(scores))
    for fitted, held in GroupKFold(FOLDS).split(scores, groups=list(groups)):
        predicted[held] = np.interp(scores[held], *_isotonic(scores[fitted], helps[fitted], 0.0))
    return _error(helps, predicted)


def _error(helps: Floats, probabilities: Floats) -> float:
    return round(calibration(helps > 0.5, np.clip(probabilities, 0, 1)).ece, 4)


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(round(float(value), 7) for value in values)
