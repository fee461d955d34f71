"""Value of any gate and threshold from logs with one answer a question (off-policy evaluation).

The log must have been written with exploration: each of the two actions had a known probability above 0. A policy is a
decision for each logged question. Questions are grouped by the probability with which the log did what the policy does:
with one rate of exploration these are two groups, "the policy agrees with the gate in service" and "it differs".

- ``inverse``: inverse propensity score (Horvitz and Thompson 1952), the sum over the groups of right answers among all
  questions, divided by the probability.
- ``normalised``: self-normalised (Hajek 1971; Swaminathan and Joachims 2015), within each group: its share of all
  questions times the share of right answers among those whose logged action is the policy's.
- ``robust``: doubly robust (Dudik, Langford and Li 2011): a logistic regression of right answers on the score, one for
  each action, cross-fitted over five folds, corrected within each group by what it missed.

The intervals of the first two add Wilson's intervals of the groups. They hold with few explored questions, where the
normal interval of the weighted mean is too narrow (``benchmarks/interval_coverage.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kbtrain.arrays import Bools, Floats
from kbtrain.metrics.significance import Z95, Delta, bounded_mean, share, weighted_sum

FEWEST = 20  # matches in a group for the doubly robust interval: with fewer it is too narrow
_FOLDS, _SEED = 5, 20_245


@dataclass(frozen=True)
class Logged:
    """Logged questions with a verdict, in one order. ``propensity``: probability of what was done, in (0, 1);
    ``right``: the verdict on the answer that was given, in [0, 1]."""

    scores: Floats
    searched: Bools
    propensity: Floats
    right: Floats


@dataclass(frozen=True)
class PolicyValue:
    """Share of right answers under a policy, by three estimators with 95 % intervals.

    ``searches``: share of the questions it searches for. ``effective``: Kish's effective sample size of the weights;
    ``fewest``: logged questions that did the policy's action, in the group with the fewest. ``robust`` is None where
    these are below :data:`FEWEST`.
    """

    searches: float
    inverse: Delta
    normalised: Delta
    robust: Delta | None
    effective: float
    fewest: int


def policy_value(logged: Logged, searches: Bools) -> PolicyValue:
    """Value of the policy that searches where ``searches`` is True. Raises ValueError for a propensity of 0 or 1."""
    if not ((logged.propensity > 0) & (logged.propensity < 1)).all():
        raise ValueError("off-policy evaluation needs propensities above 0 and below 1")
    n, agrees = len(searches), logged.searched == searches
    of_policy = np.where(agrees, logged.propensity, 1 - logged.propensity).round(9)
    weights = agrees / of_policy
    inverse, normalised, groups = [], [], []
    for probability in np.unique(of_policy):
        group = of_policy == probability
        matched = group & agrees
        right, matches = float(logged.right[matched].sum()), int(matched.sum())
        groups.append((group, matched))
        inverse.append((1 / float(probability), share(right, n)))
        normalised.append((float(group.mean()), share(right, matches) if matches else Delta(0.5, 0.0, 1.0)))
    fewest = min(int(matched.sum()) for _, matched in groups)
    return PolicyValue(
        searches=float(searches.mean()),
        inverse=weighted_sum(inverse),
        normalised=weighted_sum(normalised),
        robust=_robust(logged, searches, groups) if fewest >= FEWEST else None,
        effective=effective_size(weights),
        fewest=fewest,
    )


def effective_size(weights: Floats) -> float:
    """Kish's effective sample size: as many equally weighted rows give a mean of the same variance."""
    return float(weights.sum()) ** 2 / float((weights**2).sum()) if weights.any() else 0.0


def _robust(logged: Logged, searches: Bools, groups: list[tuple[Bools, Bools]]) -> Delta:
    from scipy.stats import t

    expected = _expected_right(logged, searches)
    mean, variance = float(expected.mean()), float(expected.var(ddof=1)) / len(expected)
    for group, matched in groups:
        missed = (logged.right - expected)[matched]
        mean += float(group.mean() * missed.mean())
        variance += float(group.mean() ** 2 * missed.var(ddof=1) / len(missed))
    fewest = min(int(matched.sum()) for _, matched in groups)
    widened = (float(t.ppf(0.975, fewest - 1)) / Z95) ** 2
    return bounded_mean(mean, variance * widened, len(expected))


def _expected_right(logged: Logged, searches: Bools) -> Floats:
    """Probability that the policy's answer is right, by models that did not see the question."""
    from sklearn.linear_model import LogisticRegression

    scores = ((logged.scores - logged.scores.mean()) / (logged.scores.std() or 1.0))[:, None]
    fold: NDArray[np.intp] = np.random.default_rng(_SEED).integers(_FOLDS, size=len(searches))
    expected = np.full(len(searches), float(logged.right.mean()))
    for number in range(_FOLDS):
        for action in (False, True):
            training, predicted = (
                (fold != number) & (logged.searched == action),
                (fold == number) & (searches == action),
            )
            right = logged.right[training] >= 0.5
            if predicted.any() and len(right):
                mixed = right.any() and not right.all()
                model = LogisticRegression().fit(scores[training], right) if mixed else None
                expected[predicted] = (
                    logged.right[training].mean() if model is None else model.predict_proba(scores[predicted])[:, 1]
                )
    return expected
