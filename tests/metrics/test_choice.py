"""Value of the best of several: the truncated normal by a second implementation, no flattery, and coverage."""

import numpy as np
import pytest
from scipy.stats import truncnorm

from kbtrain.metrics.choice import ALPHA, BETA, chosen_value
from kbtrain.metrics.significance import Delta


def draws(centre, covariance, n, rng):
    """Figures as observed, then resamples whose mean and covariance are exactly these."""
    noise = rng.normal(size=(n, len(centre)))
    noise -= noise.mean(axis=0)
    white = noise @ np.linalg.inv(np.linalg.cholesky(np.cov(noise, rowvar=False).reshape(len(centre), -1))).T
    return np.vstack([centre, centre + white @ np.linalg.cholesky(covariance).T])


def test_the_interval_solves_the_truncated_normal_of_the_source():
    """Independent figures with spread 1: the winner's is truncated below by the runner-up's."""
    found = chosen_value(draws(np.array([0.4, 1.0, 0.7]), np.eye(3), 4000, np.random.default_rng(0)))
    assert found.place == 1 and found.apparent.mean == 1.0
    reach = float(np.quantile(np.abs(np.random.default_rng(1).normal(size=(400_000, 3))).max(axis=1), 1 - BETA))
    tail = (ALPHA - BETA) / (1 - BETA) / 2
    means = np.linspace(1 - reach, 1 + reach, 20_001)[1:-1]
    low, high = np.maximum(0.7, means - reach), means + reach
    below = truncnorm.cdf(1.0, low - means, high - means, loc=means)  # falls with the mean
    for mean, expected in ((found.corrected.low, 1 - tail), (found.corrected.high, tail)):
        assert mean == pytest.approx(means[int((below >= expected).sum())], abs=0.06)
    assert -0.4 < found.corrected.mean < 0.6  # hardly above the others: part of its lead is luck


def test_a_clear_winner_keeps_its_value_and_a_single_candidate_too():
    rng = np.random.default_rng(0)
    clear = chosen_value(draws(np.array([9.0, 0.0]), np.eye(2), 2000, rng)).corrected
    assert (clear.mean, clear.low, clear.high) == pytest.approx((9.0, 9 - 1.96, 9 + 1.96), abs=0.15)
    single = chosen_value(draws(np.array([2.0]), np.eye(1), 2000, rng)).corrected
    assert single.mean == pytest.approx(2.0) and single.high - single.low == pytest.approx(3.92, abs=0.2)


def test_another_figure_of_the_chosen_is_corrected_by_what_the_two_share():
    """Candidates chosen by one figure: an independent second figure needs no correction, an equal one the same."""
    both = draws(np.array([0.0, 0.1, 5.0, 6.0]), np.eye(4), 3000, np.random.default_rng(2))
    criterion, value = both[:, :2], both[:, 2:]
    shared = chosen_value(criterion, value).corrected
    assert (shared.low, shared.high) == pytest.approx((6 - 1.96, 6 + 1.96), abs=0.15)
    assert 5.4 < shared.mean < 6.0  # the choice is one that other data sets would often make otherwise
    assert chosen_value(criterion, value).place == 1
    assert chosen_value(criterion, criterion).corrected == chosen_value(criterion).corrected
    assert chosen_value(criterion).corrected.mean < -0.2


def test_the_estimate_is_that_of_the_questions_that_resamples_leave_out():
    """BBC-CV itself, on questions: the chosen candidate's mean over those that the resample lacks."""
    rng = np.random.default_rng(5)
    right = rng.random((300, 4)) < [0.5, 0.52, 0.55, 0.56]
    counts = rng.multinomial(300, np.full(300, 1 / 300), size=4000)
    drawn = counts @ right / 300
    picked = drawn.argmax(axis=1)
    left_out = (counts == 0).astype(float) @ right / (counts == 0).sum(axis=1)[:, None]
    expected = left_out[np.arange(len(drawn)), picked].mean()
    assert chosen_value(np.vstack([right.mean(axis=0), drawn])).corrected.mean == pytest.approx(expected, abs=0.002)


def test_equal_candidates_undefined_draws_and_figures_without_spread():
    rng = np.random.default_rng(4)
    one = draws(np.array([1.0]), np.eye(1), 1000, rng)
    twins = chosen_value(np.hstack([one, one]))
    assert twins.place == 0 and twins.corrected.mean == pytest.approx(1.0)
    tied = draws(np.array([1.0, 1.0, 0.9]), np.eye(3), 1000, rng)  # as figures of few questions are
    of_two = chosen_value(tied).corrected
    assert of_two.low < of_two.mean < of_two.high and of_two.high - of_two.low > 3
    tied[0, 1] += 1e-16
    rounded = chosen_value(tied).corrected
    assert (rounded.low, rounded.high) == pytest.approx((of_two.low, of_two.high))
    holes = np.hstack([one, one - 3])
    holes[5, 1] = np.nan
    assert chosen_value(holes).corrected.mean == pytest.approx(1.0, abs=0.05)
    constant = chosen_value(np.ones((50, 2)))
    assert constant.corrected == constant.apparent == Delta(1.0, 1.0, 1.0)


@pytest.mark.parametrize(("lead", "correlation"), [(0.0, 0.0), (1.0, 0.5), (0.0, 0.9), (4.0, 0.0)])
def test_the_interval_covers_the_chosen_ones_true_value(lead, correlation):
    """Eight candidates, 400 data sets: 95 % within what as many draws tell (three standard errors)."""
    rng = np.random.default_rng(int(10 * lead + 100 * correlation))
    truth = np.array([lead, *np.zeros(7)])
    root = np.linalg.cholesky(correlation + (1 - correlation) * np.eye(8))
    covered, errors = [], []
    for _ in range(400):
        seen = truth + root @ rng.normal(size=8)
        found = chosen_value(np.vstack([seen, seen + rng.normal(size=(300, 8)) @ root.T]))
        covered.append(found.corrected.low <= truth[found.place] <= found.corrected.high)
        errors.append(found.corrected.mean - truth[found.place])
    assert 0.917 <= np.mean(covered) <= 0.983
    assert -0.4 < np.mean(errors) < 0.2  # of a spread; rather too low than too high; as observed up to 1.4


def test_an_inflation_widens_the_interval_of_a_clear_choice_by_its_factor():
    clear = draws(np.array([9.0, 0.0]), np.eye(2), 2000, np.random.default_rng(0))
    wide = chosen_value(clear, inflation=[2.0, 1.0]).corrected
    assert (wide.low, wide.high) == pytest.approx((9 - 3.92, 9 + 3.92), abs=0.3)
