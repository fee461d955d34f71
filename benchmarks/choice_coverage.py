"""Simulate how often the interval of a chosen gate covers its true area, as observed and corrected for the choice.

Questions gain -1, 0 or 1 by a search; a gate's score is the gain's expected value, more or less blurred. In worlds
``alike``, ``one ahead`` and ``ladder`` gates are given, and the best on the drawn questions is chosen. In ``fitted``
they are ridge regressions on more and more columns, and cross-validation over the drawn questions chooses; nested
cross-validation, repeated five times, widens the corrected interval. The true value is the area on many other
questions, in ``fitted`` the mean over the folds' fits. No model is loaded; minutes.

Examples:
  python benchmarks/choice_coverage.py --sets 1000
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.evaluation.evidence import area_draws
from kbtrain.metrics.choice import chosen_value, nested_inflation
from kbtrain.metrics.ranking import normalised_area
from kbtrain.metrics.significance import resampled_areas
from kbtrain.progress import progress_bar
from kbtrain.training.folds import folds

GATES = 6
_OTHERS = 20_000  # questions that tell the true area
_COLUMNS = 24
_REPEATS, _DRAWS = 5, 60  # of nested cross-validation, and resamples for the variance of a fold's area
# scores by gate of the drawn questions, their outcomes, each gate's area on others, and its nested inflation
World = tuple[Mapping[str, Floats], Floats, Floats, list[float], list[float] | None]
BLURS = {
    "alike": np.full(GATES, 1.5),
    "one ahead": np.array([0.8, *np.full(GATES - 1, 1.5)]),
    "ladder": np.linspace(0.8, 2.5, GATES),
}


class CoverageConfig(Config):
    questions: int = Field(300, ge=40, description="questions of a data set")
    sets: int = Field(1000, ge=1, description="data sets of each world")
    seed: int = Field(0, ge=0, le=2**32 - 1, description="of the data sets")


def main(config: CoverageConfig) -> None:
    rows = ["| world | covered, as observed | covered, corrected | bias, as observed | bias, corrected | width, "
            "corrected to observed |", "|---|--:|--:|--:|--:|--:|"]  # fmt: skip
    for number, world in enumerate([*BLURS, "fitted"]):
        rng = np.random.default_rng([config.seed, number])
        drawn = [
            errors(world, config.questions, rng) for _ in progress_bar(range(config.sets), desc=world, unit="sets")
        ]
        columns = np.array(drawn).T
        before, after = (columns[start : start + 3] for start in (0, 3))
        covered = [float(((low <= 0) & (high >= 0)).mean()) for _, low, high in (before, after)]
        width = float((after[2] - after[1]).mean() / (before[2] - before[1]).mean())
        cells = [*(f"{share:.1%}" for share in covered), *(f"{side[0].mean():+.3f}" for side in (before, after))]
        rows.append(f"| {world} | {' | '.join(cells)} | {width:.2f} |")
    print(f"{config.sets} data sets of {config.questions} questions, {GATES} gates")
    print("\n".join(rows))


def errors(world: str, n: int, rng: np.random.Generator) -> tuple[float, ...]:
    """Estimate, low and high end less the true area of the chosen gate: as observed, then corrected."""
    scores, none, one, true, factors = fitted_gates(n, rng) if world == "fitted" else given_gates(BLURS[world], n, rng)
    found = chosen_value(area_draws(scores, none, one, int(rng.integers(2**31))), inflation=factors)
    values = [getattr(side, end) for side in (found.apparent, found.corrected) for end in ("mean", "low", "high")]
    return tuple(value - true[found.place] for value in values)


def questions(expected: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Right answers without and with a search, drawn so that the gain's expected value follows ``expected``."""
    need = 1 / (1 + np.exp(-expected))
    none = (rng.random(len(expected)) < 0.6 - 0.4 * need).astype(float)
    return none, (rng.random(len(expected)) < 0.2 + 0.4 * need).astype(float)


def given_gates(blurs: Floats, n: int, rng: np.random.Generator) -> World:
    """See :data:`World`."""
    expected = rng.normal(size=n + _OTHERS)
    shared = rng.normal(size=n + _OTHERS)  # gates that read the same questions err together
    scores = [expected + blur * (shared + rng.normal(size=n + _OTHERS)) / np.sqrt(2) for blur in blurs]
    none, one = questions(expected, rng)
    true = [normalised_area(values[n:], none[n:], one[n:]) or 0.0 for values in scores]
    return {f"gate {i}": values[:n] for i, values in enumerate(scores)}, none[:n], one[:n], true, None


def fitted_gates(n: int, rng: np.random.Generator) -> World:
    """Held-out scores of ridge regressions on the first columns, by their number, with their nested inflation."""
    read = rng.normal(size=(n + _OTHERS, _COLUMNS))
    none, one = questions(read @ np.linspace(0.6, 0.0, _COLUMNS), rng)
    scores, true, inflation = {}, [], []
    for width in np.linspace(2, _COLUMNS, GATES).astype(int):
        nested = [nested_repeat(read[:n, :width], none[:n], one[:n], repeat) for repeat in range(_REPEATS)]
        held, weights, _ = nested[0]
        areas = [normalised_area(read[n:, :width] @ own, none[n:], one[n:]) or 0.0 for own in weights]
        variance = float(resampled_areas([held], none[:n], one[:n], _DRAWS, 0).var())
        inflation.append(nested_inflation(*np.stack([figures for *_, figures in nested], axis=1), variance))
        scores[f"{width} columns"] = held
        true.append(float(np.mean(areas)))
    return scores, none[:n], one[:n], true, inflation


def nested_repeat(read: Floats, none: Floats, one: Floats, seed: int) -> tuple[Floats, list[Floats], Floats]:
    """Held-out scores, each fold's weights, and (3, folds): area inside, of the fold, and the latter's variance."""
    parts = [rest for _, rest in folds(range(len(read)), seed)]
    figures, weights, held = [], [], np.zeros(len(read))
    for part in parts:
        others = [other for other in parts if other is not part]
        weights.append(ridge(read, one - none, np.concatenate(others)))
        held[part] = read[part] @ weights[-1]
        inner = np.zeros(len(read))
        for other in others:
            inner[other] = read[other] @ ridge(
                read, one - none, np.concatenate([rest for rest in others if rest is not other])
            )
        fitted = np.concatenate(others)
        areas = [normalised_area(scores[of], none[of], one[of]) or 0.0 for scores, of in
                 ((inner, fitted), (held, np.array(part)))]  # fmt: skip
        drawn = resampled_areas([held[part]], none[part], one[part], _DRAWS, 0)
        figures.append([*areas, float(np.nanvar(drawn))])
    return held, weights, np.array(figures).T


def ridge(read: Floats, gains: Floats, places: Sequence[int] | NDArray[np.intp]) -> Floats:
    """Weights of a regression of the gains, with penalty 1."""
    own = read[places]
    weights: Floats = np.linalg.solve(own.T @ own + np.eye(own.shape[1]), own.T @ gains[places])
    return weights


if __name__ == "__main__":
    run_script(main, CoverageConfig, __doc__)
