"""Classification metrics against counts by hand and a second implementation."""

from __future__ import annotations

import numpy as np
import pytest

from kbtrain.metrics.classification import classify, expected_at_random


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
