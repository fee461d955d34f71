"""How many questions a figure needs: the width of an interval, the smallest promise, and what decides a difference."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kbtrain.metrics.significance import Delta, paired_difference

SIZES = (75, 150, 300, 600, 1200)  # test questions: a quarter of 300 to 4,800
_GAINED, _LOST = 0.10, 0.04  # answers that a gate changes against always searching, as gates of the demo did


@dataclass(frozen=True)
class Reach:
    """What ``n`` questions can show: ``half``: half the 95 % interval of a difference of right answers, of a gate that
    changes one answer in seven; ``promise``: the smallest loss that can be promised with probability 0.9, where no
    question of dev was lost.
    """

    n: int
    half: float
    promise: float


def reach(n: int, delta: float = 0.1) -> Reach:
    """The interval by :func:`~kbtrain.metrics.significance.paired_difference`, the promise by Clopper-Pearson."""
    value = paired_difference(round(_GAINED * n), round(_LOST * n), n)
    return Reach(n, (value.high - value.low) / 2, 1 - (delta / 2) ** (1 / n))


def table() -> list[str]:
    """What :data:`SIZES` questions can show, as lines of text."""
    rows = [f"{size.n:>9,}  {f'±{100 * size.half:.1f} points':<22}  {100 * size.promise:.1f} points"
            for size in map(reach, SIZES)]  # fmt: skip
    return ["questions  a difference is known to  smallest loss that can be promised", *rows]


def deciding(value: Delta, n: int) -> int | None:
    """Questions at which the interval of a difference that stays as it is would leave 0; None where it is 0."""
    half = (value.high - value.low) / 2
    return None if value.mean == 0 else max(1, math.ceil(n * (half / value.mean) ** 2))


def planning_line(n_test: int) -> str:
    """What the test questions of a run can show, in one sentence."""
    here, more = reach(n_test), reach(4 * n_test)
    return (
        f"{n_test} test questions measure a difference of right answers to ±{100 * here.half:.1f} points, four times "
        f"as many to ±{100 * more.half:.1f}"
    )
