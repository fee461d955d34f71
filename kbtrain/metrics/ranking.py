"""AUROC with its 95 % interval, of several scores on the same resamples of the questions: they can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kbtrain.metrics.significance import Delta, delta

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
DRAWS = 2000
SEED = 20_244
_CELLS = 4_000_000


@dataclass(frozen=True)
class Separation:
    """How well one score tells positives from negatives, and how it is distributed over each.

    ``minus``: the reference score's AUROC minus this one's (None for the reference). ``quantiles``: 5, 25, 50, 75 and
    95 % of the scores of ``positive`` and ``negative`` questions.
    """

    name: str
    n: int
    n_positive: int
    auroc: Delta
    minus: Delta | None
    positive: tuple[float, ...]
    negative: tuple[float, ...]


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def separations(truth: Bools, scores: Mapping[str, Floats], reference: str) -> list[Separation]:
    """Of all ``scores`` (higher = positive), in their order. Raises ``ValueError`` if only one class is there."""
    if not truth.any() or truth.all():
        raise ValueError("AUROC needs questions of both classes")
    draws = {name: _aurocs(truth, values) for name, values in scores.items()}
    base = draws.get(reference)
    return [
        Separation(
            name=name,
            n=len(truth),
            n_positive=int(truth.sum()),
            auroc=delta(float(found[0]), found[1:]),
            minus=None if base is None or name == reference else delta(float(base[0] - found[0]), (base - found)[1:]),
            positive=_quantiles(scores[name][truth]),
            negative=_quantiles(scores[name][~truth]),
        )
        for name, found in draws.items()
    ]


def _quantiles(values: Floats) -> tuple[float, ...]:
    return tuple(float(value) for value in np.quantile(values, QUANTILES))


def _aurocs(truth: Bools, scores: Floats) -> Floats:
    """As observed first, then in each resample; ties count one half.

    Positives and negatives are resampled each on their own: their numbers stay.
    """
    rng = np.random.default_rng(SEED)
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=-np.inf))
    classes = np.flatnonzero(truth), np.flatnonzero(~truth)
    n, parts, step = len(truth), [], max(1, _CELLS // len(truth))
    for first in range(0, DRAWS + 1, step):
        rows = min(step, DRAWS + 1 - first)
        counts = np.zeros((rows, n))
        for members in classes:
            counts[:, members] = rng.multinomial(len(members), np.full(len(members), 1 / len(members)), size=rows)
        if first == 0:
            counts[0] = 1.0
        positive, negative = (np.add.reduceat((counts * of)[:, order], starts, axis=1) for of in (truth, ~truth))
        below = np.cumsum(negative, axis=1) - negative / 2
        parts.append((positive * below).sum(axis=1) / (len(classes[0]) * len(classes[1])))
    return np.concatenate(parts)
