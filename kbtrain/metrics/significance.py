"""Paired bootstrap over questions, and random gates drawn many times; vectorised, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_CELLS = 250_000  # numbers held at once: 2 MB stay in the cache, and the memory need not be asked for anew


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
    return np.concatenate([counts @ columns / len(columns) for counts in _resamples(len(columns), draws, seed)])


def resampled_areas(orders: Sequence[Floats], llm: Floats, rag: Floats, draws: int, seed: int) -> Floats:
    """Oracle-normalised areas (``curves.normalised_area``) of several gates' scores in each resample: (draws, gates).

    NaN where the resample leaves the oracle nothing to gain.
    """
    gain = rag - llm
    parts = []
    for counts in _resamples(len(gain), draws, seed):
        best = _excess_area(gain, gain, counts)
        best[best <= 1e-12] = np.nan
        parts.append(np.stack([_excess_area(scores, gain, counts) / best for scores in orders], axis=1))
    return np.concatenate(parts)


def _excess_area(scores: Floats, gain: Floats, counts: Floats) -> Floats:
    """Area between a gate's curve and the random line, per resample (rows of ``counts``: copies of each question)."""
    n = len(gain)
    order = np.argsort(-scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=np.inf))  # of the blocks of equal scores
    size = counts.take(order, axis=1)
    gained = size * gain[order]
    if len(starts) < n:
        size, gained = (np.add.reduceat(part, starts, axis=1) for part in (size, gained))
    total = np.cumsum(gained, axis=1)
    # trapezoids, above the accuracy without retrieval
    under: Floats = np.einsum("ij,ij->i", size, total) - np.einsum("ij,ij->i", size, gained) / 2
    return under / n**2 - total[:, -1] / (2 * n)


def _resamples(n: int, draws: int, seed: int) -> Iterator[Floats]:
    """How often each of n questions was drawn, in blocks of rows: the same for the same n, draws and seed."""
    rng = np.random.default_rng(seed)
    step = max(1, _CELLS // n)
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        picked = rng.integers(n, size=(rows, n)) + (np.arange(rows) * n)[:, None]
        yield np.bincount(picked.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


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
