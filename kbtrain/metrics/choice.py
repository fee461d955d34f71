"""Value of the best of several candidates, corrected for its choice by the same data (the winner's curse).

No candidate is fitted again: all follows from the candidates' figures in bootstrap resamples. Three sources:

- The estimate is that of BBC-CV (Tsamardinos, Greasidou and Borboudakis, Machine Learning 107, 2018): each resample
  chooses, and the chosen candidate is valued on the questions that the resample did not draw. For a mean over questions
  that value is on average twice the candidate's figure on all questions, minus its figure in the resample.
- The interval is the hybrid one of Andrews, Kitagawa and McCloskey, "Inference on Winners" (Quarterly Journal of
  Economics 139(1), 2024). The figures are taken as normal with the resamples' covariance. The chosen one's figure is
  then truncated by its being the greatest, and by the projection interval of all candidates.
- Resamples do not see that cross-validated fits share their questions. ``studies/cross_validation.py`` estimates how
  much too small their spread is: nested cross-validation of Bates, Hastie and Tibshirani, "Cross-validation: what does
  it estimate and how well does it do it?" (Journal of the American Statistical Association 119, 2024).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kbtrain.arrays import Bools, Floats
from kbtrain.metrics.significance import Delta, interval

ALPHA, BETA = 0.05, 0.005  # of the interval; of the projection interval that bounds it, as the source proposes
TAIL = (ALPHA - BETA) / (1 - BETA) / 2
_SIMULATED, _SEED = 20_000, 20_244  # draws of the projection interval's quantile
_EQUAL = 1e-9  # difference of slopes, or of figures in spreads, up to which two candidates count as equal


@dataclass(frozen=True)
class ChosenValue:
    """Figure of the candidate at ``place``: as observed, and corrected for the choice, each with its 95 % interval."""

    place: int
    apparent: Delta
    corrected: Delta


def chosen_value(
    criterion: Floats, value: Floats | None = None, inflation: Sequence[float] | None = None
) -> ChosenValue:
    """Corrected ``value`` of the candidate with the greatest ``criterion``; without ``value`` the criterion itself.

    Both are (1 + resamples, candidates): figures as observed, then those of bootstrap resamples of the same questions.
    Resamples with an undefined figure are skipped. Ties go to the first candidate. The interval covers the chosen
    candidate's true figure in 95 % of all data sets, as far as the figures are normal. ``inflation``: factor by which
    the spread of each candidate's resamples is too small, for cross-validated fits; without it their interval is too
    narrow (studies/notes/evidence.md).
    """
    table = criterion if value is None else value
    place = int(np.argmax(criterion[0]))
    apparent = interval(table[:, place])
    defined: Bools = np.isfinite(np.concatenate([criterion, table], axis=1)).all(axis=1)
    resamples, drawn_values = criterion[1:][defined[1:]], table[1:][defined[1:]]
    spread = float(drawn_values[:, place].std(ddof=1))
    if not defined[0] or spread <= 0:
        return ChosenValue(place, apparent, apparent)
    spread *= 1.0 if inflation is None else inflation[place]
    deviations = drawn_values[:, place] - drawn_values[:, place].mean()
    slopes = deviations @ (resamples - resamples.mean(axis=0)) / (deviations @ deviations)
    observed = float(table[0, place])
    worse = np.flatnonzero(criterion[0, place] - criterion[0] > _EQUAL * resamples[:, place].std())
    residual = criterion[0] - slopes * observed
    limits = _limits(residual[worse] - residual[place], slopes[place] - slopes[worse])
    reach = _projection_quantile(drawn_values) * spread
    low, high = (_mean_at(probability, observed, spread, limits, reach) for probability in (1 - TAIL, TAIL))
    picked = np.argmax(resamples, axis=1)
    estimate = float((2 * table[0, picked] - drawn_values[np.arange(len(resamples)), picked]).mean())
    return ChosenValue(place, apparent, Delta(min(max(estimate, low), high), low, high))


def _limits(gaps: Floats, slopes: Floats) -> tuple[float, float]:
    """Values of the chosen candidate between which it stays above the others, given what does not depend on its value.

    A candidate with the same observed figure is not among the others: between the two the order decides.
    """
    rises, falls = slopes > _EQUAL, slopes < -_EQUAL
    low = np.max(gaps[rises] / slopes[rises], initial=-np.inf)
    return float(low), float(np.min(gaps[falls] / slopes[falls], initial=np.inf))


def _projection_quantile(resamples: Floats) -> float:
    """Quantile of the greatest absolute standardised error of any candidate."""
    varying = resamples[:, resamples.std(axis=0) > 0]
    values, vectors = np.linalg.eigh(np.atleast_2d(np.corrcoef(varying, rowvar=False)))
    root = vectors * np.sqrt(np.maximum(values, 0))
    return float(np.quantile(np.abs(_normal_draws(len(values)) @ root.T).max(axis=1), 1 - BETA))


@functools.cache
def _normal_draws(count: int) -> Floats:
    return np.random.default_rng(_SEED).normal(size=(_SIMULATED, count))


def _mean_at(probability: float, observed: float, spread: float, limits: tuple[float, float], reach: float) -> float:
    """Mean of the truncated normal distribution under which ``probability`` is below the observed value."""
    from scipy.optimize import brentq
    from scipy.special import ndtr

    def excess(mean: float) -> float:
        low, high = max(limits[0], mean - reach), min(limits[1], mean + reach)
        below, value, above = ndtr((np.clip([low, observed, high], low, high) - mean) / spread)
        return float((value - below) / max(above - below, 1e-300)) - probability

    return float(brentq(excess, observed - reach, observed + reach, xtol=1e-6 * spread))
