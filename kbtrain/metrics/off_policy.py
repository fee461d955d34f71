"""Value of any gate and threshold from logs with one answer a question (off-policy evaluation).

The log must have been written with exploration: each of the two actions had a known probability above 0. A policy is a
decision for each logged question. Questions are grouped by the probability with which the log did what the policy does:
with one rate of exploration these are two groups, "the policy agrees with the gate in service" and "it differs".

The estimate is self-normalised (Hajek 1971; Swaminathan and Joachims 2015) within each group: its share of all
questions times the share of right answers among those whose logged action is the policy's. Its interval adds Wilson's
intervals of the groups: it holds with few explored questions, where the normal interval of the weighted mean is too
narrow (``benchmarks/interval_coverage.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kbtrain.arrays import Bools, Floats
from kbtrain.metrics.significance import Delta, share, weighted_sum


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
    """Share of right answers under a policy (``normalised``), with its 95 % interval.

    ``searches``: share of the questions it searches for. ``effective``: Kish's effective sample size of the weights: as
    many equally weighted rows give a mean of the same variance. ``fewest``: logged questions that did the policy's
    action, in the group with the fewest.
    """

    searches: float
    normalised: Delta
    effective: float
    fewest: int


def policy_value(logged: Logged, searches: Bools) -> PolicyValue:
    """Value of the policy that searches where ``searches`` is True. Raises ValueError for a propensity of 0 or 1."""
    if not ((logged.propensity > 0) & (logged.propensity < 1)).all():
        raise ValueError("off-policy evaluation needs propensities above 0 and below 1")
    agrees = logged.searched == searches
    of_policy = np.where(agrees, logged.propensity, 1 - logged.propensity).round(9)
    weights = agrees / of_policy
    parts, matches = [], []
    for probability in np.unique(of_policy):
        group = of_policy == probability
        matched = group & agrees
        matches.append(int(matched.sum()))
        right = share(float(logged.right[matched].sum()), matches[-1]) if matches[-1] else Delta(0.5, 0.0, 1.0)
        parts.append((float(group.mean()), right))
    effective = float(weights.sum()) ** 2 / float((weights**2).sum()) if weights.any() else 0.0
    return PolicyValue(float(searches.mean()), weighted_sum(parts), effective, min(matches))
