"""Where to cut a gate's scores: chosen on dev questions only, by a named rule. A question is retrieved if score > cut.

A threshold lies halfway between two neighbouring scores, so that equal scores always share one fate. The two ends,
"retrieve everything" and "retrieve nothing", are the lowest score - 1 and the highest score + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from kbtrain.errors import UserError

Floats = NDArray[np.float64]
Rule = Literal["0.5", "best_f1", "best_accuracy", "ratio"]
RULES: tuple[Rule, ...] = get_args(Rule)


@dataclass(frozen=True)
class Threshold:
    """A cut, the rule that chose it, and what it does on the ``n_dev`` questions it was chosen on."""

    value: float
    rule: Rule
    n_dev: int
    dev_ratio: float
    dev_accuracy: float


@dataclass(frozen=True)
class Dev:
    """The dev questions as a threshold rule sees them, in one order.

    ``llm`` and ``rag``: (expected) correctness without and with retrieval; ``needed``: 1 where a retrieval is needed.
    """

    scores: Floats
    llm: Floats
    rag: Floats
    needed: Floats


def choose(rule: Rule, dev: Dev, target_ratio: float = 0.5, midpoint: float = 0.5) -> Threshold:
    """The threshold for one gate. Of equally good cuts, the one with the fewest retrievals.

    ``0.5``: the fixed midpoint of the score's range; ``best_f1``: of "retrieval needed"; ``best_accuracy``: end to
    end; ``ratio``: the attainable retrieval ratio nearest to ``target_ratio`` (equal scores can not be parted).
    Raises :class:`UserError` without dev questions, or for best_f1 without a question that needs retrieval.
    """
    if rule != "0.5" and len(dev.scores) == 0:
        raise UserError(f"threshold rule '{rule}': there is no dev question to choose on; use rule '0.5'")
    if rule == "0.5":
        return _threshold(midpoint, rule, dev)
    values = cuts(dev.scores)
    searches = _cumulated(dev.scores, np.ones_like(dev.scores))
    if rule == "best_f1":
        total = float(dev.needed.sum())
        if total == 0:
            raise UserError("threshold rule 'best_f1': no dev question needs retrieval; use another rule")
        goodness = 2 * _cumulated(dev.scores, dev.needed) / (searches + total)
    elif rule == "best_accuracy":
        goodness = _cumulated(dev.scores, dev.rag - dev.llm)
    else:
        goodness = -np.abs(searches / len(dev.scores) - target_ratio)
    # rounding: sums of the same gains in another order must stay ties
    return _threshold(float(values[np.argmax(goodness >= goodness.max() - 1e-9)]), rule, dev)


def _threshold(value: float, rule: Rule, dev: Dev) -> Threshold:
    n = len(dev.scores)
    retrieved = dev.scores > value
    accuracy = float(np.where(retrieved, dev.rag, dev.llm).mean()) if n else 0.0
    return Threshold(value, rule, n, float(retrieved.mean()) if n else 0.0, accuracy)


def cuts(scores: Floats) -> Floats:
    """All cuts that differ, from "nothing" to "everything" (descending)."""
    values = np.unique(scores)[::-1]
    upper, lower = values[:-1], values[1:]
    middle = lower + (upper - lower) / 2
    middle = np.where(middle < upper, middle, lower)  # neighbouring floats have nothing between them
    return np.concatenate([[values[0] + 1], middle, [values[-1] - 1]])


def _cumulated(scores: Floats, weights: Floats) -> Floats:
    """Sum of the weights of the questions retrieved at each of :func:`cuts`."""
    _, block = np.unique(-scores, return_inverse=True)
    return np.concatenate([[0.0], np.cumsum(np.bincount(block, weights=weights))])
