"""Accuracy against retrieval ratio: what a gate's order of the questions is worth, whatever the threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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
