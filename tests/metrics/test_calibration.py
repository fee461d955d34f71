"""Calibration of scores, thresholds with a promise and those noted by a goal."""

import numpy as np
import pytest
from scipy.stats import beta, binomtest
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from kbtrain.errors import UserError
from kbtrain.metrics.calibration import calibration
from kbtrain.metrics.thresholds import Dev, control, upper_bounds


def made(n=4000, too_sure=2.0):
    """Probabilities whose logits are ``too_sure`` times as large as they should be."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1.2, n)
    return rng.random(n) < 1 / (1 + np.exp(-logits)), 1 / (1 + np.exp(-too_sure * logits))


def test_ece_worked_by_hand():
    found = calibration(np.array([False, True, True, True]), np.array([0.1, 0.15, 0.9, 1.0]))
    # bin .1-.2: predicted .125, observed .5; bin .9-1: predicted .95, observed 1
    assert found.ece == pytest.approx(0.5 * 0.375 + 0.5 * 0.05)
    assert [(b.low, b.n) for b in found.bins] == [(0.1, 2), (0.9, 2)]


def test_brier_and_bins_equal_scikit_learn():
    truth, p = made()
    found = calibration(truth, p)
    assert found.brier == pytest.approx(brier_score_loss(truth, p))
    observed, predicted = calibration_curve(truth, p, n_bins=10)
    assert [b.observed for b in found.bins] == pytest.approx(observed)
    assert [b.predicted for b in found.bins] == pytest.approx(predicted)


def dev(scores, llm, rag):
    return Dev(scores, llm, rag, (rag > llm).astype(float))


def draw(rng, n, soft=False):
    """Questions whose score is informative: the higher, the more a retrieval mends and the less it breaks."""
    scores = rng.random(n)
    gain = np.where(rng.random(n) < 0.5 * scores, 1.0, np.where(rng.random(n) < 0.08, -1.0, 0.0))
    if soft:
        gain = gain * rng.random(n)
    llm = np.where(gain > 0, 0.0, np.where(gain < 0, -gain, 1.0))
    return dev(scores, llm, llm + gain)


def test_exact_bounds_equal_scipys_binomial_test():
    totals = np.array([0.0, 1, 7, 49, 50])
    found = upper_bounds(totals, 50, 0.05)
    expected = [binomtest(int(k), 50, alternative="less").proportion_ci(0.95, method="exact").high for k in totals]
    assert found == pytest.approx(expected)


def test_bounds_of_fractions_lie_at_or_above_the_exact_ones_and_cover():
    totals = np.arange(0.0, 41.0)
    assert (upper_bounds(totals, 40, 0.1, exact=False) >= upper_bounds(totals, 40, 0.1) - 1e-12).all()
    drawn = beta.rvs(0.3, 1.7, size=(2000, 40), random_state=np.random.default_rng(0)).sum(axis=1)  # mean 0.15
    assert (upper_bounds(drawn, 40, 0.1, exact=False) >= 0.15).mean() >= 0.9


def test_the_loss_promise_worked_by_hand():
    # retrieval mends the 40 questions with the highest scores and makes no difference to the others
    scores = np.arange(100.0)
    found = control(dev(scores, np.where(scores >= 60, 0.0, 1.0), np.ones(100)), 0.05, 0.1)
    lost = max(k for k in range(40) if upper_bounds(np.array([float(k)]), 100, 0.05)[0] <= 0.05)
    assert lost == 1
    assert (found.observed, found.ratio, found.threshold) == (0.01, 0.39, 60.5)


def test_either_side_of_the_loss_s_bound_has_half_of_delta():
    """400 questions: retrieval mends the 300 highest scores and breaks the 100 lowest; scipy's intervals, one-sided."""
    scores = np.arange(400.0)
    rag, llm = np.where(scores < 100, 0.0, 1.0), np.where(scores < 300, 1.0, 0.0)
    found = control(dev(scores, llm, rag), 0.02, 0.1)
    skipped = scores <= found.threshold
    lost, saved = (int(((rag - llm)[skipped] == sign).sum()) for sign in (1, -1))
    upper = binomtest(lost, 400).proportion_ci(0.9, "exact").high  # two-sided 0.9: 0.05 on either side
    lower = binomtest(saved, 400).proportion_ci(0.9, "exact").low
    assert found.bound == pytest.approx(upper - lower, abs=1e-9) and found.observed == (lost - saved) / 400
    assert found.observed < 0 and found.ratio < 0.2  # answers saved make room for answers lost


def test_equal_scores_are_not_parted_and_a_useless_gate_retrieves_almost_everything():
    llm = (np.random.default_rng(0).random(300) < 0.3).astype(float)
    found = control(dev(np.full(300, 0.5), llm, np.ones(300)), 0.05)
    assert found.ratio == 1
    assert found.threshold < 0.5


@pytest.mark.parametrize("soft", [False, True])
def test_the_promise_is_kept_at_least_90_times_in_100_by_simulation(soft):
    whole = draw(np.random.default_rng(1), 200_000, soft)
    order = np.argsort(whole.scores)
    sorted_scores = whole.scores[order]
    lost = np.concatenate([[0.0], np.cumsum((whole.rag - whole.llm)[order])]) / len(order)
    kept, ratios = 0, []
    trials = 150 if soft else 1000  # bounds of fractions are searched for
    for trial in range(trials):
        found = control(draw(np.random.default_rng(trial), 300, soft), 0.05, 0.1)
        kept += lost[np.searchsorted(sorted_scores, found.threshold, side="right")] <= 0.05
        ratios.append(found.ratio)
    assert kept / trials >= 0.9 - 2 * (0.09 / trials) ** 0.5  # two standard errors
    assert np.mean(ratios) < 0.95  # and it does save searches


def test_too_few_questions_are_refused_with_the_number_needed():
    few = draw(np.random.default_rng(0), 50)
    with pytest.raises(UserError, match=r"50 calibration questions are too few .* 149 are needed, or a larger limit"):
        control(few, 0.02, 0.1)
    control(draw(np.random.default_rng(0), 149), 0.02, 0.1)
    with pytest.raises(UserError, match=r"must lie between 0 and 1, found 0 and 0.1"):
        control(few, 0, 0.1)


def test_the_first_threshold_that_fails_ends_the_search_though_a_later_one_would_hold():
    """Not searching for the lowest 40 loses .1; for 80 more it gains .2: the order of tests was fixed beforehand."""
    scores = np.repeat([0.0, 1.0, 2.0], [40, 80, 280])
    rag = np.repeat([1.0, 0.0, 1.0], [40, 80, 280])
    llm = np.repeat([0.0, 1.0, 1.0], [40, 80, 280])
    found = control(Dev(scores, llm, rag, rag * (1 - llm)), limit=0.05)
    assert (found.threshold, found.ratio, found.observed) == (-1.0, 1.0, 0.0)
