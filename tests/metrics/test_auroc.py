"""AUROC with an interval: scikit-learn's value, ties one half, paired differences, coverage."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from kbtrain.metrics.ranking import auroc, average_precision, separations
from kbtrain.metrics.significance import Delta, stratified_counts


def test_the_value_is_scikit_learn_s_with_ties_too():
    rng = np.random.default_rng(0)
    truth = rng.random(150) > 0.6
    scores = {
        "fine": rng.normal(size=150) + truth,
        "tied": np.round(rng.normal(size=150) + truth),
        "flat": np.ones(150),
    }
    found = {one.name: one for one in separations(truth, scores, "fine")}
    for name, values in scores.items():
        assert found[name].auroc.mean == pytest.approx(roc_auc_score(truth, values), abs=1e-12)
        assert found[name].auroc.low <= found[name].auroc.mean <= found[name].auroc.high
    assert found["flat"].auroc == found["flat"].auroc.__class__(0.5, 0.5, 0.5)
    assert found["fine"].minus is None
    assert found["tied"].minus.mean == pytest.approx(found["fine"].auroc.mean - found["tied"].auroc.mean)
    worse = found["flat"].minus  # a score that tells nothing: the difference is above it for certain
    assert 0 < worse.low < worse.mean < worse.high
    assert (found["fine"].n, found["fine"].n_positive) == (150, int(truth.sum()))


def test_the_same_score_twice_differs_by_nothing():
    rng = np.random.default_rng(1)
    truth, values = rng.random(80) > 0.5, rng.normal(size=80)
    one, two = separations(truth, {"a": values, "b": values}, "a")
    assert two.minus.low == two.minus.high == 0.0 and one.auroc == two.auroc


def test_the_interval_covers_the_truth():
    # normal scores one apart: AUROC = Phi(1 / sqrt 2) = 0.7602
    inside = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        truth = np.arange(120) < 60
        (found,) = separations(truth, {"s": rng.normal(size=120) + truth}, "s")
        inside += found.auroc.low <= 0.7602 <= found.auroc.high
    assert inside >= 35


def test_quantiles_are_of_each_kind_and_one_class_alone_is_an_error():
    truth = np.array([True, True, False])
    (found,) = separations(truth, {"s": np.array([1.0, 3.0, 10.0])}, "s")
    assert found.positive[2] == 2.0 and found.negative == (10.0,) * 5
    with pytest.raises(ValueError, match="both classes"):
        separations(np.array([True, True]), {"s": np.zeros(2)}, "s")


def test_one_computation_gives_scikit_learn_s_values_plain_and_weighted():
    rng = np.random.default_rng(5)
    for n in (2, 3, 40, 300):
        truth = np.arange(n) % 3 == 0
        weights = rng.integers(1, 4, (3, n)).astype(float)
        for scores in (rng.random(n) + truth, np.round(rng.random(n) + truth, 1), np.zeros(n)):
            assert auroc(truth, scores) == pytest.approx([roc_auc_score(truth, scores)], abs=1e-12)
            assert average_precision(truth, scores) == pytest.approx(
                [average_precision_score(truth, scores)], abs=1e-12
            )
            areas, means = auroc(truth, scores, weights), average_precision(truth, scores, weights)
            for row, w in enumerate(weights):
                assert areas[row] == pytest.approx(roc_auc_score(truth, scores, sample_weight=w), abs=1e-12)
                assert means[row] == pytest.approx(average_precision_score(truth, scores, sample_weight=w), abs=1e-12)


def test_a_row_without_positives_or_negatives_has_no_area():
    truth, scores = np.array([True, False, True]), np.array([3.0, 2.0, 1.0])
    weights = np.array([[1.0, 0, 1], [0, 1, 0], [1, 1, 1]])
    assert np.isnan(auroc(truth, scores, weights)).tolist() == [True, True, False]
    assert np.isnan(average_precision(truth, scores, weights)).tolist() == [False, True, False]


def test_resamples_keep_the_classes_and_begin_with_the_data():
    truth = np.arange(30) % 4 == 0
    counts = np.concatenate(list(stratified_counts(truth, 20, 1)))
    assert counts.shape == (21, 30) and (counts[0] == 1).all()
    assert (counts[:, truth].sum(1) == truth.sum()).all() and (counts.sum(1) == 30).all()


def test_intervals_draw_whole_clusters():
    """Eight questions of an entity say no more than one of them."""
    rng = np.random.default_rng(0)
    few = rng.random(60) < 0.5
    truth, score = np.repeat(few, 8), np.repeat(rng.normal(size=60) + few, 8)
    (alone,) = separations(truth, {"s": score}, "s")
    (together,) = separations(truth, {"s": score}, "s", [str(i // 8) for i in range(480)])
    assert alone.auroc.mean == pytest.approx(together.auroc.mean)
    widths = [one.auroc.high - one.auroc.low for one in (alone, together)]
    assert widths[1] / widths[0] == pytest.approx(8**0.5, rel=0.15)


def test_draws_of_clusters_with_one_class_are_left_out():
    truth, clusters = np.array([True, False, False]), ["a", "b", "b"]  # half of the draws have one class
    (found,) = separations(truth, {"s": np.array([2.0, 1.0, 3.0])}, "s", clusters)
    assert found.auroc == Delta(0.5, 0.5, 0.5)
