"""Gates that see the question alone, on published verdicts of several answering models: fits, differences, transfer.

A gate is fitted to the gain of one retrieval (-1, 0, 1) by ridge regression (penalty, and layers of states, by
leave-one-out on the fitted questions alone), or to (1 + gain) / 2 by the gate ``features``' additive regression. Its
held-out scores of the training questions are those of fits to the other folds. All choices are made by these; the test
questions are scored by fits to all training questions. Higher score = retrieval more needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kbtrain.gates.features.additive import Row, fit_additive, fit_logistic
from kbtrain.gates.probe import head
from kbtrain.metrics.ranking import normalised_area
from kbtrain.metrics.significance import Delta, draw_policies, interval, resampled_areas, resampled_means
from kbtrain.metrics.thresholds import Dev, choose
from kbtrain.training.folds import folds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kbtrain.arrays import Floats

Places = Sequence[int]
Fit = Callable[[Places, "Floats", Places], "Floats"]  # (fitted places, their gains, scored places) -> scores
DRAWS, SEED = 2000, 20_244
RIVAL = "adaptive_rag_t5"  # Adaptive-RAG's classifier, whose published choices are beside ours
Z80 = 1.9600 + 0.8416  # both-sided 5 % and a power of 80 %, in standard errors


def of_vectors(layers: Sequence[NDArray[np.float32]]) -> Fit:
    """Ridge on one or several tables of states (questions, d): the heads that follow the gains best are averaged."""

    def fit(places: Places, gains: Floats, scored: Places) -> Floats:
        read = lambda layer: layers[layer][list(places)].astype(np.float64)  # noqa: E731
        (fits,) = head.fit_layers("ridge", range(len(layers)), read, [gains])
        made = head.fit_head("ridge", fits, None, read, gains)
        return made.predict(np.stack([layers[layer][list(scored)] for layer in made.layers], axis=1))

    return fit


def of_features(rows: Sequence[Row]) -> Fit:
    """The additive regression of the gate ``features``."""

    def fit(places: Places, gains: Floats, scored: Places) -> Floats:
        model = fit_additive([rows[i] for i in places], ((1 + gains) / 2).tolist())
        return np.array(model.log_odds([rows[i] for i in scored]))

    return fit


def of_set(data_sets: Sequence[str]) -> Fit:
    """The data set's mean gain: whatever is pooled must beat it."""

    def fit(places: Places, gains: Floats, scored: Places) -> Floats:
        names = np.array([data_sets[i] for i in places])
        mean = {name: float(gains[names == name].mean()) for name in set(names.tolist())}
        return np.array([mean.get(data_sets[i], float(gains.mean())) for i in scored])

    return fit


def stacked(
    held: Sequence[Floats], scored: Sequence[Floats], gains: Floats, groups: Sequence[int], seed: int = 0
) -> tuple[Floats, Floats]:
    """A logistic regression of (1 + gain) / 2 on members' scores: (its held-out scores, its test scores).

    ``held`` are the members' cross-validated scores of the training questions, ``scored`` those of the test questions.
    ``groups``: as of :func:`held_out`.
    """
    inner, outer = np.stack(held, axis=1), np.stack(scored, axis=1)
    mean, spread = inner.mean(0), np.maximum(inner.std(0), 1e-9)
    inner, outer, need = (inner - mean) / spread, (outer - mean) / spread, (1 + gains) / 2
    found = np.zeros(len(gains))
    for part, rest in folds(groups, seed):
        slopes, intercept = fit_logistic(inner[part], need[part], 1.0)
        found[rest] = inner[rest] @ slopes + intercept
    slopes, intercept = fit_logistic(inner, need, 1.0)
    return found, outer @ slopes + intercept


def per_set(member: Fit, data_sets: Sequence[str]) -> Fit:
    """One fit for each data set, to its own questions alone."""

    def fit(places: Places, gains: Floats, scored: Places) -> Floats:
        found, place_of = np.zeros(len(scored)), list(places)
        for name in sorted({data_sets[i] for i in scored}):
            own = [k for k, i in enumerate(place_of) if data_sets[i] == name]
            asked = [k for k, i in enumerate(scored) if data_sets[i] == name]
            found[asked] = member([place_of[k] for k in own], gains[own], [scored[k] for k in asked])
        return found

    return fit


def held_out(fit: Fit, places: Places, gains: Floats, groups: Sequence[int], seed: int = 0) -> Floats:
    """Score of each place by a fit to the other folds, in their order. Places of one group share a fold."""
    found = np.zeros(len(places))
    for part, rest in folds(groups, seed):
        found[rest] = fit([places[i] for i in part], gains[part], [places[i] for i in rest])
    return found


@dataclass(frozen=True)
class Measured:
    """Test figures of one gate: oracle-normalised area, and its paired differences from other gates' by their names."""

    area: Delta
    minus: dict[str, Delta]


def areas(scores: Mapping[str, Floats], none: Floats, one: Floats, seed: int = SEED) -> dict[str, Measured]:
    """Areas and all paired differences, with 95 % bootstrap intervals over questions."""
    names, table = list(scores), area_draws(scores, none, one, seed)
    return {
        name: Measured(
            interval(table[:, i]),
            {other: interval(table[:, i] - table[:, j]) for j, other in enumerate(names) if j != i},
        )
        for i, name in enumerate(names)
    }


def area_draws(scores: Mapping[str, Floats], none: Floats, one: Floats, seed: int = SEED) -> Floats:
    """Areas as observed, then those of each resample of questions with something to gain: (1 + resamples, gates)."""
    seen = [normalised_area(values, none, one) or 0.0 for values in scores.values()]
    drawn = resampled_areas(list(scores.values()), none, one, DRAWS, seed)
    return np.concatenate([[seen], drawn[np.isfinite(drawn).all(axis=1)]])


def best_threshold(scores: Floats, none: Floats, one: Floats) -> float:
    """The threshold of rule ``best_accuracy``."""
    return choose("best_accuracy", Dev(scores, none, one, one - none)).value


@dataclass(frozen=True)
class AtThreshold:
    """Decisions on the test questions: accuracy, share of searches, and differences from fixed policies."""

    threshold: float | None
    accuracy: float
    searched: float
    minus_never: Delta
    minus_always: Delta
    minus_random: Delta
    questions_for_two_points: int


def at_decisions(searches: Floats, none: Floats, one: Floats, threshold: float | None = None) -> AtThreshold:
    """``searches``: 1 where the gate retrieves. Random: as many searches, drawn at random; their share and what
    a search gains are as uncertain as the rest, and drawn anew with the questions.

    ``questions_for_two_points``: test questions at which a difference of 2 points from random would be found with 80 %
    probability (two-sided 5 %), from this gate's own spread.
    """
    gain, share = one - none, float(searches.mean())
    (drawn,) = draw_policies(none, one, [searches], DRAWS, SEED)
    spread = float(((searches - share) * (gain - gain.mean())).std(ddof=1))
    needed = int(np.ceil((Z80 * spread / 0.02) ** 2))
    differences = drawn.over_never, drawn.over_always, drawn.over_chance
    return AtThreshold(threshold, float(drawn.accuracy[0]), share, *differences, needed)


def kappa(first: Floats, second: Floats) -> Delta:
    """Cohen's kappa of two models' 0 and 1, with its interval over questions."""
    columns = np.stack([first, second, first * second], axis=1)

    def of(means: Floats) -> Floats:
        a, b, both = means[..., 0], means[..., 1], means[..., 2]
        agreed, chance = 1 - a - b + 2 * both, a * b + (1 - a) * (1 - b)
        found: Floats = (agreed - chance) / np.maximum(1 - chance, 1e-12)
        return found

    return interval(of(resampled_means(columns, DRAWS, SEED)))
