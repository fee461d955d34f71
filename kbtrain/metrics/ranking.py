"""AUROC with its 95 % interval, of several scores on the same resamples of the questions: they can be compared.

Accuracy against retrieval ratio: what a gate's order of the questions is worth, whatever the threshold.
"""

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


@dataclass(frozen=True)
class Curve:
    """A piecewise linear curve: ``accuracy`` (share of questions) at each ``ratio`` of questions retrieved, 0 to 1."""

    ratio: Floats
    accuracy: Floats

    @property
    def area(self) -> float:
        """Mean accuracy over all retrieval ratios."""
        return float(np.sum(np.diff(self.ratio) * (self.accuracy[1:] + self.accuracy[:-1]) / 2))

    def at(self, ratios: Floats) -> Floats:
        """Accuracy at other ratios."""
        return np.interp(ratios, self.ratio, self.accuracy)


def retrieval_curve(scores: Floats, llm: Floats, rag: Floats) -> Curve:
    """The questions retrieved in order of score, highest first.

    ``llm`` and ``rag`` are the (expected) correctness of each question without and with retrieval. Within a block of
    equal scores the order means nothing, so the curve runs straight from the block's start to its end: that is the
    expected accuracy when some of them are retrieved at random.
    """
    _, block = np.unique(-scores, return_inverse=True)
    size = np.bincount(block)
    gain = np.bincount(block, weights=rag - llm)
    ratio = np.concatenate([[0.0], np.cumsum(size) / len(scores)])
    return Curve(ratio, np.concatenate([[0.0], np.cumsum(gain) / len(scores)]) + llm.mean())


def oracle_curve(llm: Floats, rag: Floats) -> Curve:
    """The best accuracy any gate can reach at each ratio: questions in order of what retrieval gains."""
    return retrieval_curve(rag - llm, llm, rag)


@dataclass(frozen=True)
class Oracles:
    """What no gate can beat on these questions, knowing both answers of each.

    ``accuracy`` is the highest one; gates reach it at retrieval ratios from ``fewest`` (only where retrieval mends) to
    ``most`` (everywhere but where it breaks). ``as_all_rag``: the least ratio at which All-RAG's accuracy is reached.
    The best accuracy at each ratio is :func:`oracle_curve`.
    """

    accuracy: float
    fewest: float
    most: float
    as_all_rag: float


def oracles(llm: Floats, rag: Floats) -> Oracles:
    """The three oracles: most accurate, fewest retrievals at that accuracy, and (as a curve) best at each ratio."""
    curve = oracle_curve(llm, rag)
    rising = slice(0, int(np.argmax(curve.accuracy)) + 1)
    as_all_rag = np.interp(rag.mean(), curve.accuracy[rising], curve.ratio[rising])
    return Oracles(
        accuracy=float(np.maximum(llm, rag).mean()),
        fewest=float((rag > llm).mean()),
        most=float((rag >= llm).mean()),
        as_all_rag=float(as_all_rag),
    )


def normalised_area(scores: Floats, llm: Floats, rag: Floats) -> float | None:
    """Area under the curve, scaled so that random order is 0 and the oracle's order is 1.

    Below 0: worse than random. None when the oracle itself gains nothing over random (retrieval makes the same
    difference to every question).
    """
    chance = float(llm.mean() + rag.mean()) / 2
    best = oracle_curve(llm, rag).area - chance
    if best <= 1e-12:
        return None
    return (retrieval_curve(scores, llm, rag).area - chance) / best
