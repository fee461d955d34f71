"""Classification metrics against counts by hand and a second implementation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from kbtrain.metrics.classification import classify, expected_at_random, log_loss


def test_metrics_worked_by_hand() -> None:
    truth = np.array([True, True, False, False, True])
    scores = np.array([0.9, 0.4, 0.6, 0.1, 0.7])
    found = classify("needed", truth, scores, scores > 0.5)
    assert (found.n, found.n_positive) == (5, 3)
    assert found.precision == pytest.approx(2 / 3)  # retrieved 0, 2, 4
    assert found.recall == pytest.approx(2 / 3)
    assert found.f1 == pytest.approx(2 / 3)
    assert found.fdr == pytest.approx(1 / 3)
    assert found.auroc == pytest.approx(5 / 6)  # of 6 pairs only (1, 2) is the wrong way round
    assert found.average_precision == pytest.approx((1 + 1 + 3 / 4) / 3)
    assert found.reasons == {}


def test_auroc_counts_ties_as_half() -> None:
    rng = np.random.default_rng(0)
    truth, scores = rng.random(80) < 0.3, rng.integers(0, 5, 80).astype(float)
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[truth] for n in scores[~truth]]
    assert classify("x", truth, scores, scores > 2).auroc == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize(
    ("value", "reason"), [(True, "every question is positive"), (False, "no question is positive")]
)
def test_a_single_class_gives_none_and_the_reason(value: bool, reason: str) -> None:
    found = classify("x", np.array([value] * 4), np.arange(4.0), np.arange(4) > 1)
    assert found.auroc is None
    assert found.average_precision is None
    assert found.reasons["auroc"] == reason
    assert (found.recall is None) is (not value)
    assert found.precision == (1.0 if value else 0.0)


def test_without_a_retrieval_there_is_no_precision() -> None:
    found = classify("x", np.array([True, False]), np.array([1.0, 0]), np.array([False, False]))
    assert (found.precision, found.fdr, found.recall, found.f1) == (None, None, 0.0, 0.0)
    assert found.reasons == dict.fromkeys(("precision", "fdr"), "no question is retrieved")


def test_expected_values_at_random_are_the_mean_of_many_draws() -> None:
    rng = np.random.default_rng(0)
    truth = rng.random(2000) < 0.3
    expected = expected_at_random("x", truth, 0.4)
    drawn = [classify("x", truth, s := rng.random(2000), s > 0.6) for _ in range(60)]
    for key in ("precision", "recall", "f1", "fdr", "auroc", "average_precision"):
        assert getattr(expected, key) == pytest.approx(np.mean([getattr(d, key) for d in drawn]), abs=0.01), key


def test_random_inputs_give_what_counting_gives() -> None:
    rng = np.random.default_rng(3)
    for _ in range(30):
        truth = rng.random(60) < rng.uniform(0.1, 0.9)
        scores = np.round(rng.random(60) + 0.3 * truth, int(rng.integers(1, 4)))  # with ties and without
        found = classify("x", truth, scores, scores > 0.6)
        hits, chosen = int((truth & (scores > 0.6)).sum()), int((scores > 0.6).sum())
        assert found.precision == pytest.approx(hits / chosen)
        assert found.recall == pytest.approx(hits / truth.sum())
        assert found.f1 == pytest.approx(2 * hits / (chosen + truth.sum()))
        u = mannwhitneyu(scores[truth], scores[~truth]).statistic
        assert found.auroc == pytest.approx(u / (truth.sum() * (~truth).sum()))
        assert found.average_precision == pytest.approx(stepwise_precision(truth, scores))


def stepwise_precision(truth: np.ndarray, scores: np.ndarray) -> float:
    """Sum over the cuts of the rise in recall times the precision there."""
    total, before = 0.0, 0.0
    for cut in np.unique(scores)[::-1]:
        chosen = scores >= cut
        recall = (truth & chosen).sum() / truth.sum()
        total += (recall - before) * (truth & chosen).sum() / chosen.sum()
        before = recall
    return total


def test_the_log_loss_worked_by_hand_for_hard_and_soft_targets_and_a_sure_mistake() -> None:
    assert log_loss([1.0, 0.0], [0.8, 0.3]) == pytest.approx(-(math.log(0.8) + math.log(0.7)) / 2)
    assert log_loss([0.25], [0.5]) == pytest.approx(math.log(2))
    assert log_loss([0.25], [0.1]) == pytest.approx(-0.25 * math.log(0.1) - 0.75 * math.log(0.9))
    assert log_loss([0.0], [1.0]) == pytest.approx(-math.log(1e-6))
