"""Threshold-free metrics of scores: AUROC, average precision, and the area under accuracy against retrieval ratio.

Every AUROC and average precision of the project comes from :func:`auroc` and :func:`average_precision`, weighted or
not; equal scores are one block, so a tie counts one half.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kbtrain.arrays import Bools, Floats
from kbtrain.metrics.significance import blocks_in_order, question_counts, resampled_areas, stratified_counts

DRAWS = 2000
SEED = 20_244


def auroc(truth: Bools, scores: Floats, weights: Floats | None = None) -> Floats:
    """Area under the ROC curve of ``scores`` (higher = positive), by trapezoids.

    ``weights`` (rows, n): how often each of the n items counts; one value per row is returned, one in all without
    weights. NaN where a row has items of one class only.
    """
    hits, alarms = _corners(*_blocks(truth, scores, weights))
    n_positive, n_negative = hits[:, -1:], alarms[:, -1:]
    with np.errstate(invalid="ignore"):
        return np.asarray(np.trapezoid(hits / n_positive, alarms / n_negative, axis=1))


def average_precision(truth: Bools, scores: Floats, weights: Floats | None = None) -> Floats:
    """Precision at each distinct score, weighted by the recall gained there; ``weights`` as in :func:`auroc`.

    NaN where a row has no positive item.
    """
    positive, negative = _blocks(truth, scores, weights)
    hits, alarms = np.cumsum(positive, axis=1), np.cumsum(negative, axis=1)
    with np.errstate(invalid="ignore"):
        recall = np.pad(hits / hits[:, -1:], ((0, 0), (1, 0)))
    retrieved = hits + alarms
    precision = np.divide(hits, retrieved, out=np.zeros_like(hits), where=retrieved > 0)
    return np.asarray((np.diff(recall, axis=1) * precision)[:, ::-1].copy().sum(axis=1))


def _blocks(truth: Bools, scores: Floats, weights: Floats | None) -> tuple[Floats, Floats]:
    """Weight of the positive and of the negative items in each block of equal scores, highest first: (rows, blocks)."""
    counts = np.ones((1, len(truth))) if weights is None else weights
    order, starts = blocks_in_order(scores)
    positive, negative = (np.add.reduceat((counts * side)[:, order], starts, axis=1) for side in (truth, ~truth))
    return positive, negative


def _corners(positive: Floats, negative: Floats) -> tuple[Floats, Floats]:
    """Cumulated hits and false alarms from (0, 0) on, without blocks between which no row's ROC curve bends."""
    bends = ((np.diff(positive, axis=1) != 0) | (np.diff(negative, axis=1) != 0)).any(axis=0)
    bends[:1] = True  # as scikit-learn does it, to the last bit
    last = np.append(bends, True)
    hits, alarms = (np.pad(np.cumsum(part, axis=1)[:, last], ((0, 0), (1, 0))) for part in (positive, negative))
    return hits, alarms


def auroc_draws(truth: Bools, scores: Floats, clusters: Sequence[str] | None = None) -> Floats:
    """AUROC as observed first, then in each resample: of the items of each class, so that their numbers stay, or of
    whole ``clusters``, NaN where one has one class. Raises ``ValueError`` for a single class."""
    if not truth.any() or truth.all():
        raise ValueError("AUROC needs questions of both classes")
    if clusters is None:
        parts: Iterator[Floats] = stratified_counts(truth, DRAWS, SEED)
    else:
        parts = itertools.chain([np.ones((1, len(truth)))], question_counts(len(truth), DRAWS, SEED, clusters))
    return np.concatenate([auroc(truth, scores, counts) for counts in parts])


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
    """Upper bounds for gates on these questions, from both answers of each.

    ``accuracy`` is the highest one; gates reach it at retrieval ratios from ``fewest`` (only where retrieval corrects)
    to ``most`` (everywhere but where it breaks). ``as_all_rag``: the least ratio at which All-RAG's accuracy is
    reached. The best accuracy at each ratio is :func:`oracle_curve`. ``sampled_benefit``: the area, random 0 and
    oracle 1, that a gate would reach which knew exactly what retrieval does to the sampled answers of each question:
    less than 1, since the one answer in use may differ from most of them. None without samples of every question.
    """

    accuracy: float
    fewest: float
    most: float
    as_all_rag: float
    sampled_benefit: float | None = None


def oracles(llm: Floats, rag: Floats, benefit: Floats | None = None) -> Oracles:
    """Upper bounds from the correctness of each question's two answers, (n,) each.

    ``benefit``: share of sampled answers that are right with retrieval minus that without, for ``sampled_benefit``.
    """
    curve = oracle_curve(llm, rag)
    rising = slice(0, int(np.argmax(curve.accuracy)) + 1)
    as_all_rag = np.interp(rag.mean(), curve.accuracy[rising], curve.ratio[rising])
    accuracy, fewest, most = (float(of.mean()) for of in (np.maximum(llm, rag), rag > llm, rag >= llm))
    sampled = None if benefit is None else normalised_area(benefit, llm, rag)
    return Oracles(accuracy, fewest, most, float(as_all_rag), sampled)


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


def drawn_areas(
    orders: Sequence[Floats], llm: Floats, rag: Floats, draws: int, seed: int, clusters: Sequence[str] | None = None
) -> Floats | None:
    """:func:`normalised_area` of several scores, as observed first, then in each resample: (1 + draws, scores).

    None where it is undefined; NaN where a resample leaves the oracle nothing to gain.
    """
    observed = [normalised_area(scores, llm, rag) for scores in orders]
    drawn = None if None in observed else resampled_areas(orders, llm, rag, draws, seed, clusters)
    if drawn is None or np.isnan(drawn).all():
        return None
    return np.concatenate([np.array([observed], dtype=np.float64), drawn])
