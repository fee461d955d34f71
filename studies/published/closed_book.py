"""Gates that foresee wrong closed-book answers of several models, cross-validated over questions.

A gate sees the question alone and what is known of it before any answer; it is fitted to the verdicts on one model's
answers. The model's own confidence, which needs its answer, is beside it. Higher score = more likely wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kbtrain.metrics.ranking import auroc
from kbtrain.metrics.significance import Delta, cluster_counts, interval
from published import fits as ev
from published.outcomes import ClosedBook

if TYPE_CHECKING:
    from kbtrain.arrays import Bools, Floats

DRAWS, SEED = 1000, 20_244
MEAN, CONFIDENCE = "model_mean", "own confidence"


def of_popularity(rows: Sequence[ClosedBook]) -> ev.Fit:
    """The additive regression of the gate ``features`` on log(1 + count) of what is known before an answer.

    A count that a row lacks is 0, and its own number says so.
    """
    names = sorted({name for row in rows for name in row.known_before})
    read = [
        {**{name: float(np.log1p(row.known_before.get(name, 0.0))) for name in names},
         **{f"no {name}": float(name not in row.known_before) for name in names}}
        for row in rows
    ]  # fmt: skip
    return ev.of_features(read)


@dataclass(frozen=True)
class Ranked:
    """AUROC of "wrong": of all answers, of those whose verdict is clear, and less that of other gates, paired."""

    all: Delta
    clear: Delta
    minus: dict[str, Delta]


def scores_of(
    rows: Sequence[ClosedBook], model: str, fits: Mapping[str, ev.Fit], done: Callable[[], object]
) -> dict[str, Floats]:
    """Held-out scores by gate, their stack, the model's mean, and its confidence (missing: the least)."""
    wrong = np.array([not row.right[model] for row in rows], dtype=float)
    places, gains = range(len(rows)), 2 * wrong - 1
    found = {MEAN: np.full(len(rows), wrong.mean())}
    for name, fit in fits.items():
        found[name] = ev.held_out(fit, places, gains, places)
        done()
    members = [found[name] for name in fits]
    found["stack"], _ = ev.stacked(members, members, gains, places)
    found[CONFIDENCE] = -np.array([row.confidence.get(model, 0.0) for row in rows])
    return found


def ranked(wrong: Bools, clear: Bools, questions: Sequence[str], scores: Mapping[str, Floats]) -> dict[str, Ranked]:
    """Figures of every gate on the same draws of questions; one question may stand there once for each model."""
    weights = cluster_counts(questions, DRAWS, SEED)
    drawn = {name: auroc(wrong, values, weights) for name, values in scores.items()}
    sure = {name: auroc(wrong[clear], values[clear], weights[:, clear]) for name, values in scores.items()}

    return {
        name: Ranked(
            interval(drawn[name]),
            interval(sure[name]),
            {o: interval(drawn[name] - drawn[o]) for o in scores if o != name},
        )
        for name in scores
    }
