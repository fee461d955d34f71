"""Intervals for shares and their differences: 30 samples are few, and a label should say how few."""

from __future__ import annotations

import math

Interval = tuple[float, float]
Z95 = 1.959963984540054  # two-sided 95 % of the normal distribution


def wilson(successes: int, n: int, z: float = Z95) -> Interval:
    """Wilson's score interval for ``successes`` of ``n`` trials (Wilson 1927), within [0, 1].

    Unlike the textbook interval it has width at 0 and at ``n`` successes, where most questions of a weak model are.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} of {n} is no share")
    share, weight = successes / n, z * z / n
    centre = share + weight / 2
    half = z * math.sqrt(share * (1 - share) / n + weight / (4 * n))
    # at the ends the exact bound is 0 or 1; rounding must not move it
    low = 0.0 if successes == 0 else (centre - half) / (1 + weight)
    high = 1.0 if successes == n else (centre + half) / (1 + weight)
    return low, high


def newcombe(first: tuple[int, int], second: tuple[int, int], z: float = Z95) -> Interval:
    """Interval for the share of ``second`` minus the share of ``first``, each (successes, n), within [-1, 1].

    Newcombe's hybrid score interval for independent shares (Newcombe 1998, method 10), from Wilson's two intervals.
    """
    before, after = first[0] / first[1], second[0] / second[1]
    (low_before, high_before), (low_after, high_after) = wilson(*first, z), wilson(*second, z)
    low = after - before - math.hypot(after - low_after, high_before - before)
    high = after - before + math.hypot(high_after - after, before - low_before)
    return low, high
