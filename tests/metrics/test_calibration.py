"""Calibration against hand-worked cases and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from kbtrain.metrics.calibration import at_temperature, calibrated, calibration, fit_temperature, isotonic


def made(n: int = 4000, too_sure: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities whose logits are ``too_sure`` times as large as they should be."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1.2, n)
    return rng.random(n) < 1 / (1 + np.exp(-logits)), 1 / (1 + np.exp(-too_sure * logits))


def test_ece_worked_by_hand() -> None:
    truth = np.array([False, True, True, True])
    found = calibration(truth, np.array([0.1, 0.15, 0.9, 1.0]))
    # bin .1-.2: predicted .125, observed .5; bin .9-1: predicted .95, observed 1
    assert found.ece == pytest.approx(0.5 * 0.375 + 0.5 * 0.05)
    assert [(b.low, b.n) for b in found.bins] == [(0.1, 2), (0.9, 2)]


def test_brier_and_bins_equal_scikit_learn() -> None:
    truth, p = made()
    found = calibration(truth, p)
    assert found.brier == pytest.approx(brier_score_loss(truth, p))
    observed, predicted = calibration_curve(truth, p, n_bins=10)
    assert [b.observed for b in found.bins] == pytest.approx(observed)
    assert [b.predicted for b in found.bins] == pytest.approx(predicted)


def test_temperature_finds_how_much_too_sure_the_scores_are() -> None:
    truth, p = made(too_sure=2.0)
    temperature = fit_temperature(truth, p)
    assert temperature == pytest.approx(2.0, rel=0.1)
    logits = np.log(p / (1 - p))[:, None]
    reference = LogisticRegression(C=1e9, fit_intercept=False).fit(logits, truth)
    assert temperature == pytest.approx(1 / reference.coef_[0, 0], rel=1e-3)
    mended = at_temperature(p, temperature)
    assert calibration(truth, mended).ece < calibration(truth, p).ece / 2
    assert log_loss(truth, mended) < log_loss(truth, p)
    assert roc_auc_score(truth, mended) == roc_auc_score(truth, p)


def test_isotonic_mends_any_unit_and_keeps_the_order() -> None:
    truth, p = made()
    scores = 10 * p - 20  # no probability
    mended = isotonic(truth[:2000], scores[:2000], scores[2000:])
    assert calibration(truth[2000:], mended).ece < 0.05
    assert (np.diff(mended[np.argsort(scores[2000:])]) >= 0).all()
    assert isotonic(truth, scores, np.array([-1e9, 1e9])) == pytest.approx([mended.min(), mended.max()], abs=0.05)


def test_scores_are_mended_by_what_dev_teaches_and_by_nothing_else() -> None:
    """High scores are right on dev, low ones on test: mended by dev, every one is wrong."""
    low = np.array([0.2, 0.8] * 10)
    found = calibrated(low > 0.5, low, low < 0.5, low)
    assert found.isotonic is not None and found.isotonic.brier == pytest.approx(1.0)
    assert found.raw is not None and found.raw.brier == pytest.approx(0.64)


def test_scores_that_are_no_probabilities_are_refused() -> None:
    with pytest.raises(ValueError, match=r"probabilities in \[0, 1\]"):
        calibration(np.array([True]), np.array([1.5]))
    with pytest.raises(ValueError, match="one per question"):
        calibration(np.array([], dtype=bool), np.array([]))


def test_what_cannot_be_calibrated_says_why() -> None:
    truth, p = made(400)
    found = calibrated(truth[:200], p[:200] * 3, truth[200:], p[200:] * 3)
    assert (found.raw, found.temperature) == (None, None)
    assert found.reasons["raw"] == "the scores are not probabilities"
    assert found.isotonic is not None and found.isotonic.ece < 0.15
    found = calibrated(np.zeros(200, dtype=bool), p[:200], truth[200:], p[200:])
    assert found.raw is not None and found.isotonic is None
    assert found.reasons["isotonic"] == "no dev question is positive"
