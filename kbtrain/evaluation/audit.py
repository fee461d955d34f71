"""Figures of a gate from a sample of logged turns whose answers under both arms were judged.

The sample is drawn in equal blocks of the scores' order, one turn of each: the score's distribution in the sample is
that of the log, and each turn has the same chance. Where a judge labelled all turns and people a random part, the
figures are people's, sharpened by the judge (:func:`prediction_powered`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kbtrain.arrays import Bools, Floats
from kbtrain.metrics.choice import chosen_value
from kbtrain.metrics.significance import (
    Z95,
    Delta,
    bounded_mean,
    modified_share,
    paired_difference,
    resampled_means,
    weighted_sum,
)
from kbtrain.metrics.thresholds import Dev, cuts

DRAWS, SEED = 2000, 20_246


def draw_turns(scores: Floats, n: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Places of ``n`` turns, one of each of n equal blocks of the scores' order; all where there are fewer."""
    if n >= len(scores):
        return np.arange(len(scores))
    order = np.lexsort((rng.random(len(scores)), scores))
    edges = np.linspace(0, len(scores), n + 1).astype(int)
    return order[rng.integers(edges[:-1], edges[1:])]


@dataclass(frozen=True)
class JudgedTurns:
    """Turns of a sample: the gate's scores, and 1 where the answer without (``llm``) and with passages (``rag``) is
    right, NaN where people gave no verdict. ``judge_llm`` and ``judge_rag``: a judge's verdicts on all turns, or None.
    """

    scores: Floats
    llm: Floats
    rag: Floats
    judge_llm: Floats | None = None
    judge_rag: Floats | None = None

    @property
    def judged(self) -> Bools:
        """True where people gave both verdicts."""
        return ~np.isnan(self.llm + self.rag)

    def dev(self) -> Dev:
        """The turns that people judged, for a threshold rule."""
        judged = self.judged
        return Dev(self.scores[judged], self.llm[judged], self.rag[judged])


@dataclass(frozen=True)
class AuditFigures:
    """Shares of turns with 95 % intervals. ``searched``: of the sample.

    ``never``, ``always``, ``gate``: right answers by policy; ``difference``: gate minus always. ``needless``: of the
    searched turns, those whose plain answer is right as well; ``missed``: of the others, those whose plain answer is
    wrong and whose answer with passages is right. None without such a turn.
    """

    threshold: float
    searched: float
    never: Delta
    always: Delta
    gate: Delta
    difference: Delta
    needless: Delta | None
    missed: Delta | None


Value = Callable[[Floats, Floats], Floats]


def audit_figures(turns: JudgedTurns, threshold: float) -> AuditFigures:
    searched = turns.scores > threshold
    everywhere = np.ones_like(searched)

    def gate(llm: Floats, rag: Floats) -> Floats:
        return np.where(searched, rag, llm)

    lost = _mean(turns, lambda llm, rag: llm - rag, ~searched, signed=True)
    skipped = float((~searched).mean())
    never, always, by_gate = (
        _mean(turns, of, everywhere) or Delta(0.5, 0.0, 1.0)
        for of in (lambda llm, rag: llm, lambda llm, rag: rag, gate)
    )
    return AuditFigures(
        threshold=threshold,
        searched=1 - skipped,
        never=never,
        always=always,
        gate=by_gate,
        # only turns without a search can differ from always searching, and their share is known
        difference=weighted_sum([(skipped, lost or Delta(0.0, -1.0, 1.0))]) if skipped else Delta(0.0, 0.0, 0.0),
        needless=_mean(turns, lambda llm, rag: llm, searched),
        missed=_mean(turns, lambda llm, rag: np.where(llm < rag, 1.0, 0.0), ~searched),
    )


def _mean(turns: JudgedTurns, value: Value, among: Bools, signed: bool = False) -> Delta | None:
    """Mean of a value over the judged turns of a part; None without one. ``signed``: it may be -1."""
    judged = turns.judged & among
    people = value(turns.llm, turns.rag)[judged]
    if not len(people):
        return None
    if turns.judge_llm is not None and turns.judge_rag is not None:
        judge = value(turns.judge_llm, turns.judge_rag)
        low = -1.0 if signed else 0.0
        return prediction_powered(people, judge[judged], judge[among & ~turns.judged], low)
    if signed:
        return paired_difference(int((people > 0).sum()), int((people < 0).sum()), len(people))
    return modified_share(float(people.sum()), len(people))


def prediction_powered(people: Floats, judge: Floats, judge_rest: Floats, low: float = 0.0) -> Delta:
    """Mean of people's verdicts on few turns, sharpened by a judge's verdicts on many, with its 95 % interval.

    ``judge``: on the turns of ``people``; ``judge_rest``: on the others. Values lie in [low, 1]. The estimate is
    PPI++'s (Angelopoulos, Duchi and Zrnic 2023, arXiv 2311.01453, example 1): the judge's mean on the turns that people
    did not see, corrected by people minus judge on the turns they saw. With fewer than two of either, people's mean.
    """
    from scipy.stats import t

    n, n_rest = len(people), len(judge_rest)
    if n < 2 or n_rest < 2:
        return bounded_mean(float(people.mean()), float(people.var()) / n, n, low)
    spread = float(np.concatenate([judge, judge_rest]).var(ddof=1))
    covariance = float(np.cov(people, judge, ddof=1)[0, 1])
    # the weight of the least variance: a judge that says nothing costs nothing
    weight = min(max(covariance / (spread * (1 + n / n_rest)), 0.0), 1.0) if spread > 0 else 0.0
    corrected = people - weight * judge
    mean = float(corrected.mean() + weight * judge_rest.mean())
    of_people, of_judge = float(corrected.var(ddof=1)) / n, weight**2 * float(judge_rest.var(ddof=1)) / n_rest
    variance = of_people + of_judge
    if variance > 0:  # Student's t, Welch's degrees of freedom (1947): of ten turns the normal one covers 92 %, not 95
        freedom = variance**2 / (of_people**2 / (n - 1) + of_judge**2 / (n_rest - 1))
        variance *= (float(t.ppf(0.975, freedom)) / Z95) ** 2
    return bounded_mean(mean, variance, n, low)


def best_threshold(turns: JudgedTurns) -> tuple[float, Delta]:
    """The threshold with the most right answers on the judged turns (of equal ones the one with the fewest searches),
    and its difference from always searching, corrected for the choice."""
    dev = turns.dev()
    values = cuts(dev.scores)
    differences = np.where(dev.scores[:, None] > values, 0.0, (dev.llm - dev.rag)[:, None])
    table = resampled_means(differences, DRAWS, SEED)
    # rounding: sums of the same gains must stay ties
    chosen = chosen_value(table.round(9))
    value = float(values[chosen.place])
    if np.ptp(table[:, chosen.place]) > 0:
        return value, chosen.corrected
    return value, audit_figures(turns, value).difference  # no judged answer differs: resamples say nothing
