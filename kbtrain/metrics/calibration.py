"""Calibration of scores: expected calibration error and Brier score.

:func:`shift` tests by Kolmogorov and Smirnov whether scores have shifted since a threshold was chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kbtrain.arrays import Bools, Floats

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Questions whose probability is in [low, high): their mean probability, and the share of positives."""

    low: float
    high: float
    n: int
    predicted: float
    observed: float


@dataclass(frozen=True)
class Calibration:
    """``ece``: mean distance of probability and observed share over the bins, weighted by their size (Naeini et al.
    2015), which are of equal width, empty ones skipped; ``brier``: mean squared error of the probabilities."""

    n: int
    ece: float
    brier: float
    bins: list[Bin]


def calibration(truth: Bools, probabilities: Floats) -> Calibration:
    """Compare probabilities with what came true, in :data:`BINS` intervals of equal width (1 falls into the last)."""
    if len(truth) == 0 or not is_probability(probabilities):
        raise ValueError("calibration needs probabilities in [0, 1], one per question")

    place = np.minimum((probabilities * BINS + 1e-9).astype(int), BINS - 1)
    bins = []
    for i in np.unique(place).tolist():
        inside = place == i
        observed = float(truth[inside].mean())
        bins.append(Bin(i / BINS, (i + 1) / BINS, int(inside.sum()), float(probabilities[inside].mean()), observed))
    ece = sum(b.n * abs(b.predicted - b.observed) for b in bins) / len(truth)
    return Calibration(len(truth), ece, float(np.mean((probabilities - truth) ** 2)), bins)


def equal_count_bins(values: Floats, bins: int) -> list[NDArray[np.intp]]:
    """Places of the values in at most ``bins`` groups of about equal size, by rising value; equal values together."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    edges = sorted({int(np.searchsorted(ordered, ordered[len(values) * i // bins])) for i in range(bins)} | {0})
    return [order[start:stop] for start, stop in pairwise([*edges, len(values)]) if stop > start]


def is_probability(scores: Floats) -> bool:
    """True if all scores are in [0, 1]; only then can they be read as probabilities."""
    return bool(((scores >= 0) & (scores <= 1)).all())


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
        """True if the gap is more than chance (:data:`ALARM`)."""
        return self.p_value < ALARM

    def line(self, gate: str) -> str:
        """The finding in one line; it begins with "warning" if it is alarming."""
        effect = f"(KS {self.statistic:.3f}, p = {self.p_value:{'.1e' if self.alarming else '.2g'}})"
        if not self.alarming:
            return f"{gate}: {self.n_new} new scores are distributed as on dev {effect}"
        dev = f"the {self.n_dev} dev questions that its threshold was chosen on {effect}"
        return (f"warning: scores of '{gate}' on {self.n_new} new questions are distributed differently from {dev}; "
                "calibrate it on questions of the new kind")  # fmt: skip


def shift(dev: ArrayLike, new: ArrayLike, independent: tuple[int | None, int | None] = (None, None)) -> Shift:
    """Compare two samples of scores by Kolmogorov and Smirnov, rounded to the seven digits that thresholds store.

    Each score counts as one observation, so pass each question once. ``independent``: numbers
    of entities that the questions of either side are about, where they are fewer; the test is exact for entities whose
    questions score alike, and conservative for others. Raises ``ValueError`` if one side is empty.
    """
    from scipy.stats import ks_2samp, kstwo

    first, second = (
        np.array([float(f"{score:.7g}") for score in np.asarray(scores, dtype=np.float64)]) for scores in (dev, new)
    )
    if not len(first) or not len(second):
        raise ValueError("no scores to compare")
    test = ks_2samp(first, second)
    sizes = [min(len(side), units or len(side)) for side, units in zip((first, second), independent, strict=True)]
    p = test.pvalue
    if sizes != [len(first), len(second)]:
        p = kstwo.sf(test.statistic, max(1, round(sizes[0] * sizes[1] / sum(sizes))))
    return Shift(float(test.statistic), float(p), len(first), len(second))


def kept_scores(scores: Floats) -> list[float]:
    """At most :data:`KEPT` of the scores, evenly spread over their order, to be stored with a threshold."""
    places = np.linspace(0, len(scores) - 1, min(len(scores), KEPT)).round().astype(int)
    return [float(score) for score in np.sort(scores)[places]]
