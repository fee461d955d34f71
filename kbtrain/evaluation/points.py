"""Decisions measured: accuracy, the random gate at the same ratio, and paired intervals for the differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kbtrain.evaluation.decisions import Decision
from kbtrain.evaluation.outcomes import Answers
from kbtrain.evaluation.results import Comparison, Point, RandomDraws
from kbtrain.metrics.curves import normalised_area
from kbtrain.metrics.hypothesis_tests import holm, mcnemar, permutation_p
from kbtrain.metrics.significance import Delta, delta, random_gates, resampled_areas, resampled_means

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """A decision's figures; its accuracy, gain over random and retrieval ratio: as observed first, then in each
    resample; and the correctness of each question under it."""

    point: Point
    accuracy: Floats
    gain: Floats
    ratio: Floats
    correct: Floats


def measure(
    answers: Answers, decisions: Sequence[Decision], *, draws: int, random_draws: int, seed: int
) -> list[Measured]:
    """All decisions on the same questions and the same resamples.

    In each resample the random accuracy is recomputed from the resampled questions at the resampled ratio.
    """
    retrieve = [decision.under(answers) for decision in decisions]
    columns = [answers.llm, answers.rag]
    for p in retrieve:
        columns += [(1 - p) * answers.llm + p * answers.rag, p]
    table = np.stack(columns, axis=1)
    means = np.concatenate([table.mean(axis=0)[None], resampled_means(table, draws, seed)])
    searches = [round(float(p.sum())) for p in retrieve]
    random = random_gates(answers.llm, answers.rag, searches, random_draws, seed)
    return [
        _measured(answers, decision, means[:, [0, 1, 2 + 2 * i, 3 + 2 * i]], random[:, i])
        for i, decision in enumerate(decisions)
    ]


def _measured(answers: Answers, decision: Decision, means: Floats, random: Floats) -> Measured:
    llm, rag, accuracy, ratio = means.T
    chance = (1 - ratio) * llm + ratio * rag
    low, high = (float(q) for q in np.quantile(random, [0.025, 0.975]))
    point = Point(
        accuracy_kind=answers.kind,
        accuracy=float(accuracy[0]),
        retrieval_ratio=float(ratio[0]),
        random_accuracy=float(chance[0]),
        delta_vs_random=interval(accuracy - chance),
        delta_vs_llm_only=interval(accuracy - llm),
        delta_vs_all_rag=interval(accuracy - rag),
        random_draws=RandomDraws(len(random), float(random.mean()), low, high),
        p_vs_random=permutation_p(float(accuracy[0]), random) if decision.threshold else None,
    )
    if decision.gate.name == "random":  # its row is an expectation: show what single random gates do
        point = replace(point, delta_vs_random=delta(0.0, random - point.accuracy))
    p = decision.under(answers)
    return Measured(point, accuracy, accuracy - chance, ratio, (1 - p) * answers.llm + p * answers.rag)


def areas(answers: Answers, decisions: Sequence[Decision], *, draws: int, seed: int) -> list[Floats | None]:
    """Each decision's oracle-normalised area: as observed first, then in each resample; None if undefined."""
    orders = [decision.scores(answers) for decision in decisions]
    observed = [normalised_area(scores, answers.llm, answers.rag) for scores in orders]
    drawn = resampled_areas(orders, answers.llm, answers.rag, draws, seed)
    if np.isnan(drawn).all():
        return [None] * len(orders)
    return [None if area is None else np.concatenate([[area], drawn[:, i]]) for i, area in enumerate(observed)]


def compare(
    name: str, other: str, a: Measured, b: Measured, area_a: Floats | None, area_b: Floats | None
) -> Comparison:
    """Paired differences a - b, see :class:`Comparison`."""
    area = None if area_a is None or area_b is None else interval(area_a - area_b)
    return Comparison(
        name,
        other,
        accuracy=interval(a.accuracy - b.accuracy),
        gain=interval(a.gain - b.gain),
        area=area,
        ratio=interval(a.ratio - b.ratio),
        mcnemar=mcnemar(a.correct, b.correct),
    )


def correct_families(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """McNemar's p-values with Holm's correction: one family for each gate that others are compared with."""
    adjusted: dict[int, float] = {}
    for other in {c.other for c in comparisons}:
        family = {i: c.mcnemar.p for i, c in enumerate(comparisons) if c.other == other and c.mcnemar is not None}
        adjusted |= zip(family, holm(list(family.values())), strict=True)
    return [
        replace(c, mcnemar=replace(c.mcnemar, p_holm=adjusted[i])) if c.mcnemar is not None else c
        for i, c in enumerate(comparisons)
    ]


def interval(values: Floats) -> Delta:
    """From a value as observed, followed by its resamples (those where it is undefined are left out)."""
    drawn = values[1:]
    return delta(float(values[0]), drawn[~np.isnan(drawn)])
