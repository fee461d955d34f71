"""Gates on published verdicts: held-out scores see no fold of their own, and figures are those worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kbtrain.evaluation import evidence as ev

NONE = np.array([1.0, 0.0, 0.0, 1.0])
ONE = np.array([0.0, 1.0, 1.0, 1.0])


def test_the_best_threshold_is_that_of_most_right_answers() -> None:
    assert ev.best_threshold(np.array([0.1, 0.9, 0.8, 0.2]), NONE, ONE) == pytest.approx(0.5)
    assert ev.best_threshold(np.array([0.9, 0.1, 0.1, 0.1]), ONE, NONE) == pytest.approx(0.5)
    assert ev.best_threshold(np.zeros(4), NONE, ONE) == -np.inf  # one block of equal scores: all or none
    assert ev.best_threshold(np.zeros(4), ONE, NONE) == np.inf
    assert ev.best_threshold(np.arange(4.0), NONE, NONE) == np.inf  # nothing gained: the fewest searches


def test_decisions_are_beside_never_always_and_random_by_hand() -> None:
    made = ev.at_decisions(np.array([0.0, 1.0, 1.0, 0.0]), NONE, ONE, 0.5)
    assert (made.accuracy, made.searched) == (1.0, 0.5)
    assert made.minus_never.mean == pytest.approx(0.5)  # two mended of four
    assert made.minus_always.mean == pytest.approx(0.25)  # one broken one kept
    assert made.minus_random.mean == pytest.approx(0.5 - 0.5 * 0.25)  # half of always' gain
    spread = float(np.std([0.5, 0.5, 0.5, 0.0], ddof=1))
    assert made.questions_for_two_points == int(np.ceil((2.8016 * spread / 0.02) ** 2))


def test_the_set_means_are_those_of_the_fitted_questions() -> None:
    fit = ev.of_set(["a", "a", "b", "b", "a", "b"])
    assert fit([0, 1, 2, 3], np.array([1.0, 0.0, -1.0, 0.0]), [4, 5]).tolist() == [0.5, -0.5]


def test_held_out_scores_come_from_fits_without_the_question() -> None:
    seen: list[tuple[set[int], set[int]]] = []

    def fit(places: ev.Places, gains: np.ndarray, scored: ev.Places) -> np.ndarray:
        seen.append((set(places), set(scored)))
        return np.array([float(place) for place in scored])

    places = list(range(100, 120))
    assert ev.held_out(fit, places, np.zeros(20)).tolist() == [float(place) for place in places]
    assert len(seen) == 5 and all(not fitted & scored for fitted, scored in seen)


def test_per_set_fits_each_set_to_its_own_questions() -> None:
    fit = ev.per_set(lambda places, gains, scored: np.full(len(scored), gains.mean()), ["a", "b", "a", "b"])
    assert fit([0, 1], np.array([3.0, 5.0]), [3, 2]).tolist() == [5.0, 3.0]


def test_a_gate_that_knows_the_gain_is_certainly_above_the_set_and_kappa_of_equals_is_one() -> None:
    rng = np.random.default_rng(0)
    gains = rng.integers(-1, 2, 400).astype(float)
    vectors = np.stack([gains + 0.3 * rng.normal(size=400), rng.normal(size=400)], axis=1).astype(np.float32)
    none, one = (gains < 0).astype(float), (gains > 0).astype(float)
    fit, train, test = ev.of_vectors([vectors]), list(range(200)), list(range(200, 400))
    scores = {"ours": fit(train, gains[:200], test), "chance": rng.normal(size=200)}
    found = ev.areas(scores, none[200:], one[200:])
    assert found["ours"].area.mean > 0.8 and found["ours"].minus["chance"].low > 0
    assert found["chance"].minus["ours"].high < 0
    assert ev.kappa(none, none).mean == pytest.approx(1.0)
    assert abs(ev.kappa(none[:200], rng.integers(0, 2, 200).astype(float)).mean) < 0.2
    held, outer = ev.stacked([gains[:200]], [gains[200:]], gains[:200])
    assert np.corrcoef(held, gains[:200])[0, 1] > 0.9 and np.corrcoef(outer, gains[200:])[0, 1] > 0.9
