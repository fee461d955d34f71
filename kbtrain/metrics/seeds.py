"""Two sources of variance: which questions were asked, and which seed trained the gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kbtrain.metrics.significance import Delta, delta, resampled_means

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SeedSummary:
    """A figure that is a mean over questions, measured for several seeds on the same questions.

    ``by_seed``: its value for each; ``spread``: their standard deviation (n - 1; None for one seed); ``questions``:
    95 % interval of the mean over seeds if only the questions were drawn anew; ``both``: if the seeds were, too.
    """

    mean: float
    by_seed: list[float]
    spread: float | None
    questions: Delta
    both: Delta


def summarise_seeds(values: Sequence[Floats], draws: int = 10_000, seed: int = 0) -> SeedSummary:
    """``values[s][i]``: the figure of question i under seed s, e.g. correctness, or a difference to another gate.

    The second bootstrap draws seeds with replacement, and questions for all of them alike: seeds share their test
    questions, so the two are crossed, not nested. With few seeds it is too narrow by about sqrt((s - 1) / s).
    """
    table = np.stack(values, axis=1)
    drawn = resampled_means(table, draws, seed)
    picked = np.random.default_rng([seed, 1]).integers(table.shape[1], size=(draws, table.shape[1]))
    both = np.take_along_axis(drawn, picked, axis=1).mean(axis=1)
    means = table.mean(axis=0)
    return SeedSummary(
        mean=float(means.mean()),
        by_seed=[float(mean) for mean in means],
        spread=float(means.std(ddof=1)) if len(means) > 1 else None,
        questions=delta(float(means.mean()), drawn.mean(axis=1)),
        both=delta(float(means.mean()), both),
    )
