"""Certainty (KBM, section 3.2): how much a question's sampled answers agree, C = 1 - U / ln I in [0, 1].

U is the entropy (natural logarithm) of the answer groups of I samples. C = 1: all the same, C = 0: all different.
"""

from __future__ import annotations

import functools
import math

from kbtrain.metrics.significance import Interval

MAX_EMPTY = 0.5  # share of empty answers above which nothing is known of how the answers agree
DRAWS = 1000  # bootstrap samples
SEED = 20_241


def certainty(groups: tuple[int, ...]) -> float:
    """Certainty from the sizes of the answer groups (their order does not matter); needs at least two answers."""
    n = sum(groups)
    if n < 2 or min(groups) < 1:
        raise ValueError(f"certainty needs two answers or more in groups that are not empty, not {groups}")
    if len(groups) == 1:
        return 1.0  # the sum below misses it by a rounding for some n
    entropy = math.log(n) - math.fsum(size * math.log(size) for size in sorted(groups)) / n
    return min(1.0, max(0.0, 1 - entropy / math.log(n)))


@functools.lru_cache(maxsize=16_384)  # 30 answers fall into groups in 5,604 ways: each is computed once
def certainty_interval(groups: tuple[int, ...], draws: int = DRAWS, seed: int = SEED) -> Interval:
    """95 % bootstrap interval for the certainty that as many samples show on average.

    The plain percentile interval fails here: a resample always agrees more than its original. So the resamples'
    spread is centred on the value itself, and one answer not seen yet takes part with weight 1 / (n + 1), without
    which 30 equal answers would leave no doubt. In simulations with 30 answers from ten kinds of distributions it
    covers 0.83 (long tails) to 1.0, the percentile interval 0.48 to 0.94. Seeded by the groups alone.
    """
    import numpy as np

    sizes = tuple(sorted(groups, reverse=True))
    n, value = sum(sizes), certainty(sizes)
    shares = np.array([*sizes, 1]) / (n + 1)
    counts = np.random.default_rng([seed, *sizes]).multinomial(n, shares, size=draws)
    size_log_size = np.array([0.0, *(size * math.log(size) for size in range(1, n + 1))])
    resampled = size_log_size[counts].sum(axis=1) / (n * math.log(n))  # = 1 - U / ln n
    low, high = np.quantile(resampled, [0.025, 0.975]) - resampled.mean()
    return max(0.0, value + min(0.0, float(low))), min(1.0, value + max(0.0, float(high)))
