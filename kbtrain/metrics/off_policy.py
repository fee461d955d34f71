"""Value of any gate and threshold from logs with one answer a question (off-policy evaluation).

The log must have been written with exploration: each of the two actions had a known probability above 0. A policy is a
decision for each logged question. Two groups of questions: "the policy agrees with the gate in service", and "it
differs", whose logged action has a probability below 0.5.

The estimate is self-normalised (Hajek 1971; Swaminathan and Joachims 2015) within each group: its share of all
questions times the weighted share of right answers among those whose logged action is the policy's. Its interval adds
Wilson's intervals of the groups, for Kish's effective size: it holds with few explored questions, where the normal
interval of the weighted mean is too narrow (``benchmarks/interval_coverage.py``).
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
    for group in filter(np.any, (of_policy < 0.5, of_policy >= 0.5)):
        size, matched = _effective_size(weights[group]), weights * group
        matches.append(int(np.count_nonzero(matched)))
        right = Delta(0.5, 0.0, 1.0)
        if size:
            right = share(min(float(logged.right @ matched / matched.sum()), 1.0) * size, size)
        parts.append((float(group.mean()), right))
    return PolicyValue(float(searches.mean()), weighted_sum(parts), _effective_size(weights), min(matches))


def _effective_size(weights: Floats) -> float:
    return float(weights.sum()) ** 2 / float(weights @ weights) if weights.any() else 0.0
