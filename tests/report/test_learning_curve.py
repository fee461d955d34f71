"""Tables of learning curves: intervals over draws, and what they rank."""

from dataclasses import replace

import numpy as np
import pytest

from kbtrain.evaluation.learning_curve import CurvePoint
from kbtrain.metrics.significance import Delta
from kbtrain.report.learning_curve import first_by_draws, interval_of_draws, layout


def points(n: int, **areas: tuple[float, ...]) -> list[CurvePoint]:
    return [CurvePoint(gate, "benefit", n, i, a, None, None) for gate, of in areas.items() for i, a in enumerate(of)]


def test_the_interval_of_three_draws_is_student_s() -> None:
    # mean .3, deviation .1, t of 2 degrees of freedom 4.3027
    low, high = interval_of_draws([0.2, 0.3, 0.4])
    assert (low, high) == (pytest.approx(0.3 - 4.3027 * 0.1 / 3**0.5, abs=1e-5), pytest.approx(0.54842, abs=1e-4))
    assert interval_of_draws([0.3]) == (None, None)


def test_draws_rank_a_gate_first_only_where_all_differences_are_certain() -> None:
    few = points(50, features=(0.39, 0.38, 0.40), probe=(0.42, 0.18, 0.30))
    many = points(400, features=(0.45, 0.44, 0.46), probe=(0.53, 0.52, 0.55))
    once = points(500, features=(0.45,), probe=(0.60,))
    assert [first_by_draws([*few, *many, *once], "benefit", n) for n in (50, 400, 500)] == [None, "probe", None]
    note = layout([*few, *many, *once], 385).note
    assert note.endswith(
        "Label benefit: first by the draws: probe with 400. No gate is ranked first with 50, 500 questions."
    )
    assert first_by_draws([*many, *points(400, stack=(0.56, 0.51, 0.54))], "benefit", 400) is None


def test_three_draws_of_one_curve_rank_gates_in_one_of_twenty() -> None:
    """Three gates that are equally good: one is ranked first in at most a twentieth of the curves."""
    rng = np.random.default_rng(0)
    ranked = [
        first_by_draws(points(50, **{g: tuple(rng.normal(0.3, 0.1, 3)) for g in "abc"}), "benefit", 50)
        for _ in range(300)
    ]
    assert sum(gate is not None for gate in ranked) <= 15


def test_the_best_gates_corrected_area_is_the_mean_over_the_draws_that_it_won() -> None:
    made = points(50, features=(0.4, 0.2), probe=(0.3, 0.5))
    won = {("features", 0): 0.36, ("probe", 1): 0.44}
    found = [replace(p, corrected=Delta(won[p.gate, p.draw], 0.0, 1.0)) if (p.gate, p.draw) in won else p for p in made]
    table = layout(found, 385)
    place = [column.name for column in table.columns].index("best, corrected")
    assert [(row[0], row[place]) for row in table.rows] == [("features", 0.36), ("probe", 0.44)]
    assert [row[place] for row in layout(made, 385).rows] == [None, None]
