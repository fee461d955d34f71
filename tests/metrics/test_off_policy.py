"""Off-policy values by hand, and intervals that hold with few explored questions."""

import math

import numpy as np
import pytest

from kbtrain.evaluation.audit import prediction_powered
from kbtrain.metrics import significance
from kbtrain.metrics.off_policy import Logged, policy_value
from kbtrain.metrics.significance import Delta, modified_share, paired_difference, share, weighted_sum, wilson


def test_values_by_hand():
    # a gate that searches for the first four of eight, a coin in half of the cases: 0.75 and 0.25
    logged = Logged(
        np.array([8.0, 7, 6, 5, 4, 3, 2, 1]), np.array([1, 1, 1, 0, 0, 0, 0, 1], dtype=bool),
        np.array([0.75, 0.75, 0.75, 0.25, 0.75, 0.75, 0.75, 0.25]), np.array([1.0, 0, 1, 1, 0, 1, 0, 1]),
    )  # fmt: skip
    found = policy_value(logged, np.ones(8, dtype=bool))
    # searched and right: two of three with 0.75, the one with 0.25
    assert found.normalised.mean == pytest.approx(0.5 * 2 / 3 + 0.5 * 1 / 1)
    weights = np.array([1 / 0.75] * 3 + [1 / 0.25])
    assert found.effective == pytest.approx(weights.sum() ** 2 / (weights**2).sum())
    assert (found.searches, found.fewest) == (1.0, 1)
    low, high = wilson(2, 3)
    one_low, one_high = wilson(1, 1)
    mean = found.normalised.mean
    assert found.normalised.low == pytest.approx(mean - 0.5 * np.hypot(2 / 3 - low, 1 - one_low))
    assert found.normalised.high == pytest.approx(mean + 0.5 * np.hypot(high - 2 / 3, one_high - 1))


def test_the_estimate_agrees_with_the_truth_on_a_large_log():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=40_000)
    decided = scores > 0
    rate = rng.uniform(0.1, 0.3, len(scores))  # of exploration, another one for each question
    done = np.where(rng.random(len(scores)) < rate, rng.random(len(scores)) < 0.5, decided)
    # a search helps where the score is high: 0.3 without, 0.3 to 0.8 with
    chance = np.where(done, 0.3 + 0.5 * (scores > 0.5), 0.3)
    logged = Logged(
        scores, done, np.where(done == decided, 1 - rate / 2, rate / 2), (rng.random(len(scores)) < chance) * 1.0
    )
    found = policy_value(logged, scores > 0.5)
    true = 0.3 + 0.5 * float((scores > 0.5).mean())
    value = found.normalised
    assert value.low < true < value.high and value.high - value.low < 0.05


def test_a_decision_without_exploration_has_no_value():
    logged = Logged(np.zeros(2), np.ones(2, bool), np.array([1.0, 0.9]), np.ones(2))
    with pytest.raises(ValueError, match="propensities"):
        policy_value(logged, np.ones(2, bool))


def test_a_paired_difference_and_a_sum_of_shares():
    # Zou and Donner's formula with p = 0.24, q = 0.04 and the correlation -sqrt(pq / ((1 - p)(1 - q)))
    found, (low, high), (least, most) = paired_difference(12, 2, 50), wilson(12, 50), wilson(2, 50)
    r = -np.sqrt(0.24 * 0.04 / (0.76 * 0.96))
    down, up = np.array([0.24 - low, most - 0.04]), np.array([high - 0.24, 0.04 - least])
    assert found.low == pytest.approx(0.2 - np.sqrt(down @ [[1, -r], [-r, 1]] @ down))
    assert found.high == pytest.approx(0.2 + np.sqrt(up @ [[1, -r], [-r, 1]] @ up))
    assert paired_difference(0, 0, 20) == Delta(0.0, pytest.approx(-0.1611, abs=1e-4), pytest.approx(0.1611, abs=1e-4))
    one = share(3, 10)
    assert weighted_sum([(1.0, one)]) == Delta(one.mean, pytest.approx(one.low), pytest.approx(one.high))


def test_a_small_share_keeps_its_interval():
    one = modified_share(1, 30)
    assert one.low == pytest.approx(-np.log(0.95) / 30) and one.high == pytest.approx(wilson(1, 30)[1])
    assert modified_share(29, 30).high == pytest.approx(1 - one.low) and modified_share(4, 30).low == wilson(4, 30)[0]
    n, true = 30, 0.005
    held = [modified_share(k, n).low <= true <= modified_share(k, n).high for k in range(n + 1)]
    covered = sum(math.comb(n, k) * true**k * (1 - true) ** (n - k) for k in range(n + 1) if held[k])
    assert covered > 0.95  # Wilson: 0.86


def test_a_judge_sharpens_people_and_a_useless_one_costs_nothing():
    rng = np.random.default_rng(1)
    right = (rng.random(500) < 0.6) * 1.0
    alone = share(float(right[:100].sum()), 100)
    good = prediction_powered(right[:100], right[:100], right[100:])
    noise = rng.random(500)
    useless = prediction_powered(right[:100], noise[:100], noise[100:])
    # a judge who is always right stands for all 500: the weight is 1 / (1 + 100 / 400)
    assert good.high - good.low < 0.5 * (alone.high - alone.low)
    assert good.mean == pytest.approx(right.mean(), abs=0.01)
    assert useless.high - useless.low < 1.05 * (alone.high - alone.low)


def test_ten_judged_turns_widen_the_interval_by_student_s_t():
    from scipy.stats import t, ttest_ind

    rng = np.random.default_rng(3)
    people = (rng.random(10) < 0.6) * 1.0
    judge, rest = np.where(rng.random(10) < 0.2, 1 - people, people), (rng.random(30) < 0.6) * 1.0
    weight = np.cov(people, judge)[0, 1] / (np.concatenate([judge, rest]).var(ddof=1) * (1 + 10 / 30))
    corrected, other = people - weight * judge, -weight * rest
    variance = corrected.var(ddof=1) / 10 + other.var(ddof=1) / 30
    freedom = ttest_ind(corrected, other, equal_var=False).df  # Welch's
    wider = variance * (t.ppf(0.975, freedom) / 1.959964) ** 2
    expected = significance.bounded_mean(corrected.mean() - other.mean(), wider, 10)
    found = prediction_powered(people, judge, rest)
    assert 0 < weight < 1 and (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-6)
