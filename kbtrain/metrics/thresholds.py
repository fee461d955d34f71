"""Thresholds of scores, chosen on dev questions only, by a named rule. A question is retrieved if score > threshold.

A threshold is halfway between two neighbouring scores, so that equal scores are treated alike. The two ends,
"retrieve everything" and "retrieve nothing", are the lowest score - 1 and the highest score + 1.

:func:`control` chooses a threshold with a guarantee that holds for any finite number of calibration questions and any
distribution. With probability 1 - delta over the draw of the calibration questions, the gate keeps its promise on new
questions of the same kind: "at most ``limit`` of the accuracy of All-RAG is lost". This is Learn-then-Test
(Angelopoulos et al. 2021) with fixed-sequence testing: all thresholds that differ are tested in one order fixed
beforehand, from the one that certainly keeps the promise; the first failure ends it. So no correction for the number of
thresholds is needed. Shares are bounded exactly (Clopper and Pearson 1934);
means of fractions by the tighter of Hoeffding's and Bentkus' inequality (Bates et al. 2021, section 3.1).
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from kbtrain.arrays import Floats
from kbtrain.config import Config, check_counts
from kbtrain.errors import UserError


def _half(value: object) -> object:
    return "0.5" if value == 0.5 else value  # YAML reads it as a number


RuleName = Literal["0.5", "best_f1", "best_accuracy", "ratio"]
Rule = Annotated[RuleName, BeforeValidator(_half)]
RULES: tuple[Rule, ...] = get_args(RuleName)
# as :data:`Rule`; max_loss: chosen by :func:`control`; given: noted in the gate's folder, or named
AnyRule = Annotated[Literal["0.5", "best_f1", "best_accuracy", "ratio", "max_loss", "given"], BeforeValidator(_half)]
READ_NO_DEV = ("0.5", "given")
MARGIN = 2.0  # standard errors by which a threshold of best_accuracy must beat never and always on dev


class ThresholdConfig(Config):
    """Keys of every script that chooses thresholds on dev questions."""

    threshold_rule: Rule = Field("ratio", description="0.5, best_f1, best_accuracy or ratio; chosen on dev")
    target_ratio: float = Field(0.5, ge=0, le=1, description="retrieval ratio of rule 'ratio'")

    @model_validator(mode="after")
    def _ratio_counts(self) -> ThresholdConfig:
        check_counts(self, "threshold_rule", "ratio", "target_ratio")
        return self


@dataclass(frozen=True)
class ThresholdChoice:
    """A threshold, the rule that chose it, and the number of questions it was chosen on."""

    value: float
    rule: AnyRule
    n_dev: int
    guarantee: Guarantee | None = None


@dataclass(frozen=True)
class Training:
    """Training questions: what a search gains for each (-1 to 1), and their scores by gates fitted without them.

    ``scores`` is empty for a gate without such scores; its training questions then only help to choose between never
    and always.
    """

    gains: Floats = field(default_factory=lambda: np.zeros(0))
    scores: Floats = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class Dev:
    """The dev questions for a threshold rule, in one order.

    ``llm`` and ``rag``: (expected) correctness without and with retrieval. ``needed``: 1 where a retrieval is needed,
    which rule ``best_f1`` alone reads; ``train``: training questions, which ``best_accuracy`` reads too.
    """

    scores: Floats
    llm: Floats
    rag: Floats
    needed: Floats = field(default_factory=lambda: np.zeros(0))
    train: Training = field(default_factory=Training)


def choose(rule: Rule, dev: Dev, target_ratio: float = 0.5, midpoint: float = 0.5) -> ThresholdChoice:
    """The threshold for one gate. Of equally good cuts, the one with the fewest retrievals.

    ``0.5``: the fixed midpoint of the score's range; ``best_f1``: of "retrieval needed"; ``best_accuracy``: end to
    end, or the better of never and always (:func:`gains_beyond_margin`); ``ratio``: the attainable retrieval ratio
    nearest to ``target_ratio`` (equal scores can not be parted).
    Raises :class:`UserError` without dev questions, or for best_f1 without a question that needs retrieval.
    """
    if rule != "0.5" and len(dev.scores) == 0:
        raise UserError(f"threshold rule '{rule}': no dev questions to choose on; use rule '0.5'")
    if rule == "0.5":
        return ThresholdChoice(midpoint, rule, len(dev.scores))
    table = with_training(dev) if rule == "best_accuracy" else dev
    values = cuts(table.scores)
    searches = _cumulated(dev.scores, np.ones_like(dev.scores))
    if rule == "best_f1":
        total = float(dev.needed.sum())
        if total == 0:
            raise UserError("threshold rule 'best_f1': no dev question needs retrieval; use another rule")
        goodness = 2 * _cumulated(dev.scores, dev.needed) / (searches + total)
    elif rule == "best_accuracy":
        goodness = gains_beyond_margin(table, MARGIN)
    else:
        goodness = -np.abs(searches / len(dev.scores) - target_ratio)
    # rounding: sums of the same gains in another order must stay ties
    return ThresholdChoice(float(values[np.argmax(goodness >= goodness.max() - 1e-9)]), rule, len(dev.scores))


def with_training(dev: Dev) -> Dev:
    """The dev questions, with the training questions that have scores."""
    scores, gains = dev.train.scores, dev.train.gains
    if not len(scores):
        return dev
    llm, rag = np.concatenate([dev.llm, 0 * gains]), np.concatenate([dev.rag, gains])
    return Dev(np.concatenate([dev.scores, scores]), llm, rag)


def gains_beyond_margin(dev: Dev, margin: float) -> Floats:
    """Right answers that each cut gains over never; the better of never and always gains most, unless the cut of most
    right answers beats it by ``margin`` standard errors.

    The better of the two is that of these and the training questions together. The standard error takes the mean
    squared gain of all questions: the few by which a cut differs may show no gain.
    """
    gain = dev.rag - dev.llm
    won, searched = _cumulated(dev.scores, gain), _cumulated(dev.scores, np.ones_like(gain))
    best = int(np.argmax(won >= won.max() - 1e-9))
    always = won[-1] + dev.train.gains.sum() > 1e-9
    differing = len(gain) - searched[best] if always else searched[best]
    lead = won[best] - (won[-1] if always else 0.0)
    if lead < margin * np.sqrt(differing * (gain**2).mean()):
        won[-1 if always else 0] += lead + 1
    return won


def cuts(scores: Floats) -> Floats:
    """All thresholds that differ, from "nothing" to "everything" (descending)."""
    values = np.unique(scores)[::-1]
    upper, lower = values[:-1], values[1:]
    middle = lower + (upper - lower) / 2
    middle = np.where(middle < upper, middle, lower)  # neighbouring floats have nothing between them
    return np.concatenate([[values[0] + 1], middle, [values[-1] - 1]])


def _cumulated(scores: Floats, weights: Floats) -> Floats:
    """Sum of the weights of the questions retrieved at each of :func:`cuts`."""
    _, block = np.unique(-scores, return_inverse=True)
    return np.concatenate([[0.0], np.cumsum(np.bincount(block, weights=weights))])


_HALVINGS = 30  # of the interval in which a bound is searched: error below 1e-9


@dataclass(frozen=True)
class Guarantee:
    """A threshold (retrieve if score > ``threshold``) and what it promises, see the module.

    ``observed`` is the loss on the ``n`` calibration questions, ``bound`` its upper confidence bound (at most
    ``limit``), ``ratio`` the share of calibration questions retrieved.
    """

    promise: Literal["accuracy_lost"]
    limit: float
    delta: float
    threshold: float
    n: int
    observed: float
    bound: float
    ratio: float


def control(calibration: Dev, limit: float, delta: float = 0.1) -> Guarantee:
    """The threshold with the fewest retrievals that loses at most ``limit`` of All-RAG's accuracy (a share of all
    questions, net of what not retrieving saves).

    The calibration questions must be exchangeable with the new ones and untouched by training or other choices.
    Raises :class:`UserError` if they are too few for any promise, with the number needed, or no threshold keeps it.
    """
    if not 0 < limit < 1 or not 0 < delta < 1:
        raise UserError(f"risk control: limit and delta must lie between 0 and 1, found {limit} and {delta}")
    scores, n = calibration.scores, len(calibration.scores)
    fewest = fewest_questions(limit, delta)
    if n < fewest:
        few = f"{n} calibration questions are too few to promise 'accuracy_lost' <= {limit}"
        raise UserError(f"risk control: {few} with probability {1 - delta:g}; {fewest} are needed, or a larger limit")
    values = cuts(scores)[::-1]  # from "retrieve everything" to "retrieve nothing"
    observed, bounds = _lost(calibration, values, delta)
    keeps = bounds <= limit + 1e-12
    if not keeps[0]:
        lost = f"already {observed[0]:.3f} of the {n} calibration questions, at most {bounds[0]:.3f} of all"
        keeps_none = f"no threshold from {values[0]:g} on keeps 'accuracy_lost' <= {limit}"
        raise UserError(f"risk control: {keeps_none}: {lost}; allow a larger limit")
    last = len(keeps) - 1 if keeps.all() else int(np.argmin(keeps)) - 1
    ratio = float((scores > values[last]).mean())
    threshold, loss, bound = (float(column[last]) for column in (values, observed, bounds))
    return Guarantee("accuracy_lost", limit, delta, threshold, n, loss, bound, ratio)


MORE = 4  # times as many dev questions, of which is said what they would allow


@dataclass(frozen=True)
class Promised:
    """The fewest searches at which at most ``limit`` of All-RAG's accuracy is lost, with probability 1 - ``delta``.

    ``guarantee``: None where that cannot be promised; ``fewest``: dev questions from which on it can, if none of them
    is lost; ``with_more``: share of searches if :data:`MORE` times as many dev questions had the same results, or None.
    """

    limit: float
    delta: float
    n: int
    fewest: int
    guarantee: Guarantee | None
    with_more: float | None = None

    @property
    def more(self) -> str:
        """What more dev questions would allow, in one sentence; empty where that is nothing."""
        if self.n < self.fewest:
            lost = f"at most {100 * self.limit:g} points lost"
            return f"To promise {lost} takes at least {self.fewest} dev questions; there are {self.n}."
        if self.with_more is None or (self.guarantee and self.with_more > self.guarantee.ratio - 0.005):
            return ""
        skipped = f"{1 - self.with_more:.1%} of the searches on dev"
        return f"With {MORE * self.n} dev questions and the same results, the promise would let it skip {skipped}."


def promised(dev: Dev, limit: float, delta: float = 0.1) -> Promised:
    """:func:`control`, where it promises anything."""
    kept: list[Guarantee | None] = [None, None]
    for place, times in enumerate((1, MORE)):
        scores, llm, rag = (np.tile(column, times) for column in (dev.scores, dev.llm, dev.rag))
        with contextlib.suppress(UserError):
            kept[place] = control(Dev(scores, llm, rag), limit, delta)
    now, more = kept
    fewest = fewest_questions(limit, delta)
    return Promised(limit, delta, len(dev.scores), fewest, now, None if more is None else more.ratio)


def _lost(calibration: Dev, values: Floats, delta: float) -> tuple[Floats, Floats]:
    """Accuracy lost against All-RAG at each cut, and its upper bound: that of the answers lost minus the lower bound
    of the answers saved, each at delta / 2."""
    order = np.argsort(calibration.scores, kind="stable")
    loss = (calibration.rag - calibration.llm)[order]
    n, skipped = len(loss), np.searchsorted(calibration.scores[order], values, side="right")
    losses, saved = (np.concatenate([[0.0], np.cumsum(part)])[skipped] for part in (loss.clip(0), (-loss).clip(0)))
    exact = bool(np.isin(loss, (-1.0, 0.0, 1.0)).all())
    upper = upper_bounds(losses, n, delta / 2, exact)
    lower = 1 - upper_bounds(n - saved, n, delta / 2, exact)
    return (losses - saved) / n, upper - lower


def fewest_questions(limit: float, delta: float) -> int:
    """Calibration questions without any loss that a promise needs: (1 - limit) ** n <= delta / 2."""
    return math.ceil(math.log(delta / 2) / math.log1p(-limit) - 1e-9)


def upper_bounds(totals: Floats, n: int, delta: float, exact: bool = True) -> Floats:
    """Upper confidence bounds (1 - delta, one-sided) for means of ``n`` values in [0, 1] that add up to ``totals``.

    ``exact``: the values are 0 or 1, so the totals are binomial (Clopper-Pearson); else Hoeffding-Bentkus.
    """
    from scipy.stats import beta

    if exact:
        inner = np.minimum(totals, n - 1)
        return np.where(totals >= n, 1.0, beta.ppf(1 - delta, inner + 1, n - inner))
    low, high = np.clip(totals / n, 0, 1), np.ones(len(totals))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        possible = _tail(totals, n, middle) > delta
        low, high = np.where(possible, middle, low), np.where(possible, high, middle)
    return high


def _tail(totals: Floats, n: int, mean: Floats) -> Floats:
    """Bound on the probability that n values in [0, 1] of this mean add up to no more than ``totals`` (<= n mean)."""
    from scipy.special import rel_entr
    from scipy.stats import binom

    share = np.clip(totals / n, 0, 1)
    hoeffding = np.exp(-n * (rel_entr(share, mean) + rel_entr(1 - share, 1 - mean)))
    return np.asarray(np.minimum(hoeffding, np.e * binom.cdf(np.ceil(totals - 1e-9), n, mean)))  # Bentkus'
