"""Searches that gates save at a small loss of accuracy against always searching (All-RAG), best gate on dev first.

Each gate's threshold is the one that leaves out the most searches on dev while at most ``limit`` of All-RAG's accuracy
is lost there; a second one has the most right answers there. The gate to be used is the one of the largest area on dev:
one threshold's savings are luck more often (docs/lab/demo.md). What it saves and loses is then measured on test, where
nothing was chosen; :mod:`kbtrain.metrics.thresholds` has a threshold with a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kbtrain.arrays import Floats
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.outcomes import AccuracyKind, Correctness
from kbtrain.metrics import thresholds
from kbtrain.metrics.ranking import Curve, normalised_area, oracle_curve, retrieval_curve
from kbtrain.metrics.significance import Delta, delta, question_counts, resampled_means
from kbtrain.records import Outcome

LIMIT = thresholds.SMALL_LOSS
BAND_DRAWS = 1_000
_ROUNDING = 1e-9


@dataclass(frozen=True)
class MostRight:
    """A gate at the threshold with the most right answers on dev (rule ``best_accuracy``), as in :class:`Saving`."""

    threshold: float
    accuracy: float
    saved: Delta
    change: Delta


@dataclass(frozen=True)
class Saving:
    """One gate with its threshold from dev. All figures are shares of the questions, ``Delta`` with 95 % intervals.

    ``saved``: searches left out on test; ``change``: accuracy minus All-RAG's; ``over_random``: accuracy minus that of
    leaving out as many searches at random. ``as_all_rag`` and ``within``: the least share of test questions searched
    for at which the gate's order reaches All-RAG's accuracy, and that accuracy minus ``limit``.
    """

    gate: str
    limit: float
    threshold: float
    n_dev: int
    n: int
    dev_saved: float
    dev_area: float | None
    accuracy: float
    saved: Delta
    change: Delta
    over_random: Delta
    as_all_rag: float
    within: float
    most_right: MostRight

    @property
    def certain(self) -> bool:
        """True if the gate's choice of searches is better than chance, by the interval on test."""
        return self.over_random.above_zero


def savings(
    dev: Sequence[Outcome],
    test: Sequence[Outcome],
    scores: Mapping[str, Mapping[str, float]],
    kind: AccuracyKind = "greedy",
    limit: float = LIMIT,
    draws: int = 2_000,
    seed: int = 0,
    clusters: Sequence[str] | None = None,
) -> list[Saving]:
    """Of every gate in ``scores`` (higher = retrieval more needed), best on dev first; intervals draw the test
    questions, or whole ``clusters`` of them.

    Empty without dev questions. Where dev was not sampled, its greedy answers stand for ``expected``.
    """
    if not dev or not test or not scores:
        return []
    before = oc.dev_answers(dev, kind)
    known = oc.answers(test, kind)
    fewest, rightest, area = {}, {}, {}
    columns = {gate: np.array([of[o.question_id] for o in test]) for gate, of in scores.items()}
    table = [known.llm, known.rag]
    for gate, of in scores.items():
        on_dev = np.array([of[o.question_id] for o in dev])
        fewest[gate] = most_saved(on_dev, before, limit)
        rightest[gate] = most_right(on_dev, before)
        area[gate] = normalised_area(on_dev, before.llm, before.rag)
        for threshold in (fewest[gate][0], rightest[gate]):
            searched = columns[gate] > threshold
            table += [searched.astype(np.float64), np.where(searched, known.rag, known.llm)]
    means = np.stack(table, axis=1)
    drawn, seen = resampled_means(means, draws, seed, clusters), means.mean(axis=0)
    found = []
    for i, gate in enumerate(scores):
        ratio, accuracy = 2 + 4 * i, 3 + 4 * i  # the table's columns; two further those of the other threshold
        curve = retrieval_curve(columns[gate], known.llm, known.rag)
        found.append(
            Saving(
                gate, limit, fewest[gate][0], len(dev), len(test), fewest[gate][1], area[gate],
                accuracy=float(seen[accuracy]),
                saved=_saved(seen, drawn, ratio),
                change=_change(seen, drawn, accuracy),
                over_random=delta(float(_over(seen[None], ratio, accuracy)[0]), _over(drawn, ratio, accuracy)),
                as_all_rag=fewest_searches(curve, float(seen[1])),
                within=fewest_searches(curve, float(seen[1]) - limit),
                most_right=MostRight(
                    rightest[gate],
                    accuracy=float(seen[accuracy + 2]),
                    saved=_saved(seen, drawn, ratio + 2),
                    change=_change(seen, drawn, accuracy + 2),
                ),
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: (math.inf if one.dev_area is None else -one.dev_area, -one.dev_saved))


def most_saved(scores: Floats, answers: Correctness, limit: float = LIMIT) -> tuple[float, float]:
    """Threshold (search if score > threshold) with the fewest searches that loses at most ``limit``; share saved."""
    threshold = thresholds.fewest_searches(_dev(scores, answers), limit)
    return threshold, float(1 - (scores > threshold).mean())


def most_right(scores: Floats, answers: Correctness) -> float:
    """Threshold with the most right answers."""
    return thresholds.choose("best_accuracy", _dev(scores, answers)).value


def _dev(scores: Floats, answers: Correctness) -> thresholds.Dev:
    """For rules that do not ask what is needed."""
    return thresholds.Dev(scores, answers.llm, answers.rag, np.zeros_like(scores))


def _saved(seen: Floats, drawn: Floats, ratio: int) -> Delta:
    return delta(1 - float(seen[ratio]), 1 - drawn[:, ratio])


def _change(seen: Floats, drawn: Floats, accuracy: int) -> Delta:
    return delta(float(seen[accuracy] - seen[1]), drawn[:, accuracy] - drawn[:, 1])


def _over(means: Floats, ratio: int, accuracy: int) -> Floats:
    """Accuracy above that of a random gate with as many searches, from means of each column (0: llm, 1: rag)."""
    return np.asarray(means[:, accuracy] - means[:, 0] - means[:, ratio] * (means[:, 1] - means[:, 0]))


def order_curves(
    test: Sequence[Outcome], scores: Mapping[str, Mapping[str, float]], kind: AccuracyKind = "greedy"
) -> dict[str, Curve]:
    """The exact curve of each gate's order of the test questions, and the oracle's."""
    known = oc.answers(test, kind)
    found = {
        gate: retrieval_curve(np.array([of[o.question_id] for o in test]), known.llm, known.rag)
        for gate, of in scores.items()
    }
    return found | {"oracle": oracle_curve(known.llm, known.rag)}


def fewest_searches(curve: Curve, accuracy: float, rounding: float = _ROUNDING) -> float:
    """The least share of questions searched for at which a curve reaches an accuracy, as exact as ``rounding``; 1 if it
    never does."""
    reached = curve.accuracy >= accuracy - rounding
    if not reached.any():
        return 1.0
    first = int(np.argmax(reached))
    if first == 0:
        return 0.0
    low, high = curve.accuracy[first - 1], curve.accuracy[first]
    part = min(1.0, max(0.0, (accuracy - low) / (high - low)))
    return float(curve.ratio[first - 1] + part * (curve.ratio[first] - curve.ratio[first - 1]))


def band(
    scores: Floats, answers: Correctness, ratios: Floats, draws: int = BAND_DRAWS, seed: int = 0
) -> tuple[Floats, Floats]:
    """95 % interval of a gate's accuracy at each share of questions searched for, by resampling the questions."""
    order = np.argsort(-scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=np.inf))
    gain, n = (answers.rag - answers.llm)[order], len(order)
    rows = []
    for counts in question_counts(n, draws, seed, answers.clusters):
        taken, size = counts[:, order], counts.sum(axis=1)
        sizes = np.cumsum(np.add.reduceat(taken, starts, axis=1), axis=1) / size[:, None]
        gains = np.cumsum(np.add.reduceat(taken * gain, starts, axis=1), axis=1) / size[:, None]
        plain = counts @ answers.llm / size
        rows += [np.interp(ratios, [0, *x], [0, *y]) + base for x, y, base in zip(sizes, gains, plain, strict=True)]
    low, high = np.quantile(np.stack(rows), [0.025, 0.975], axis=0)
    return low, high


@dataclass(frozen=True)
class FourFold:
    """Numbers of questions by decision and need. Needed: right with retrieval and wrong without.

    ``broken``, of those searched for in vain: right without retrieval, wrong with it. ``spared``, of those left alone
    well: retrieval would have broken them.
    """

    searched_well: int
    in_vain: int
    broken: int
    missed: int
    saved_well: int
    spared: int


def four_fold(outcomes: Sequence[Outcome], scores: Mapping[str, float], threshold: float) -> FourFold:
    """Count a gate's decisions on graded greedy answers."""
    searched = np.array([scores[o.question_id] > threshold for o in outcomes], dtype=bool)
    needed = oc.needed(outcomes)
    harmed = np.array([o.llm_correct and not o.rag_correct for o in outcomes], dtype=bool)
    counts = (searched & needed, searched & ~needed, searched & harmed, ~searched & needed, ~searched & ~needed,
              ~searched & harmed)  # fmt: skip
    return FourFold(*(int(one.sum()) for one in counts))
