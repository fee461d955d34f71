"""Have a gate's scores shifted since its threshold was chosen? Kolmogorov and Smirnov's two-sample test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
ALARM = 0.01  # p-value below which a shift is reported
KEPT = 2000  # dev scores kept with a threshold: enough to see a shift of 0.04 with as many new ones


@dataclass(frozen=True)
class Shift:
    """``statistic``: the largest gap between the two distribution functions; ``p_value`` of no gap at all."""

    statistic: float
    p_value: float
    n_dev: int
    n_new: int

    @property
    def alarming(self) -> bool:
        """Whether the gap is more than chance (:data:`ALARM`)."""
        return self.p_value < ALARM

    def line(self, gate: str) -> str:
        """The finding in one line; it begins with "warning" if it is alarming."""
        if not self.alarming:
            same = f"{gate}: {self.n_new} new scores are distributed as on dev"
            return f"{same} (KS {self.statistic:.3f}, p = {self.p_value:.2g})"
        return (
            f"warning: scores of '{gate}' on {self.n_new} new questions are distributed otherwise than on the "
            f"{self.n_dev} dev questions its threshold was chosen on (KS {self.statistic:.3f}, p = "
            f"{self.p_value:.1e}); calibrate it on questions of the new kind"
        )


def shift(dev: ArrayLike, new: ArrayLike) -> Shift:
    """Compare scores. Raises ``ValueError`` if one side is empty."""
    from scipy.stats import ks_2samp

    first, second = (np.asarray(scores, dtype=np.float64) for scores in (dev, new))
    if not len(first) or not len(second):
        raise ValueError("no scores to compare")
    found = ks_2samp(first, second)
    return Shift(float(found.statistic), float(found.pvalue), len(first), len(second))


def kept_scores(scores: Floats) -> list[float]:
    """At most :data:`KEPT` of the scores, evenly spread over their order, to be stored with a threshold."""
    ordered = np.sort(scores)
    if len(ordered) > KEPT:
        ordered = ordered[np.linspace(0, len(ordered) - 1, KEPT).round().astype(int)]
    return [float(f"{score:.7g}") for score in ordered]
