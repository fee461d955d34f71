"""Paired bootstrap over questions, and random gates drawn many times; vectorised, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_CELLS = 4_000_000  # numbers held at once: 32 MB


@dataclass(frozen=True)
class Delta:
    """A difference of accuracies as observed (``mean``), with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval lies above 0 (rounding errors do not count)."""
        return self.low > 1e-12


def delta(observed: float, draws: Floats) -> Delta:
    """Percentile interval (2.5 % to 97.5 %) around an observed difference."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return Delta(float(observed), float(low), float(high))


def resampled_means(columns: Floats, draws: int, seed: int) -> Floats:
    """Means of each column over questions drawn with replacement: (n, k) -> (draws, k).

    All columns see the same questions in each draw, so differences between columns are paired.
    """
    n = len(columns)
    rng = np.random.default_rng(seed)
    step = max(1, _CELLS // n)
    parts = []
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        picked = rng.integers(n, size=(rows, n)) + (np.arange(rows) * n)[:, None]
        counts = np.bincount(picked.ravel(), minlength=rows * n).reshape(rows, n)
        parts.append(counts.astype(np.float64) @ columns / n)
    return np.concatenate(parts)


def random_gates(llm: Floats, rag: Floats, searches: list[int], draws: int, seed: int) -> Floats:
    """Accuracies of gates that retrieve exactly ``searches[j]`` questions drawn at random: (draws, len(searches))."""
    n = len(llm)
    rng = np.random.default_rng(seed)
    step = max(1, _CELLS // n)
    gain = rag - llm
    parts = []
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        shuffled = rng.permuted(np.broadcast_to(gain, (rows, n)), axis=1)
        total = np.concatenate([np.zeros((rows, 1)), np.cumsum(shuffled, axis=1)], axis=1)
        parts.append(llm.mean() + total[:, searches] / n)
    return np.concatenate(parts)
