"""Curves of accuracy against searches, areas, and the order of equal scores."""

import itertools

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score
from support.scripts import load

from kbtrain.metrics.ranking import (
    auroc,
    auroc_draws,
    average_precision,
    normalised_area,
    oracle_curve,
    oracles,
    retrieval_curve,
)
from kbtrain.metrics.significance import Delta, interval


def test_curve_worked_by_hand():
    llm, rag = np.array([0.0, 1, 0, 1]), np.array([1.0, 1, 0, 0])
    curve = retrieval_curve(np.array([0.9, 0.1, 0.5, 0.3]), llm, rag)
    # order: question 0 (mended), 2 (no difference), 3 (broken), 1 (no difference)
    assert curve.ratio.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert curve.accuracy.tolist() == [0.5, 0.75, 0.75, 0.5, 0.5]
    assert curve.area == pytest.approx((0.625 + 0.75 + 0.625 + 0.5) / 4)


def test_the_oracle_order_has_area_1_and_its_reverse_is_below_0():
    llm, rag = np.array([0.0, 1, 0, 1, 0]), np.array([1.0, 1, 0, 0, 1])
    assert normalised_area(rag - llm, llm, rag) == pytest.approx(1)
    assert normalised_area(llm - rag, llm, rag) == pytest.approx(-1)


def test_equal_scores_are_as_good_as_random():
    rng = np.random.default_rng(1)
    llm, rag = rng.integers(0, 2, (2, 500)).astype(float)
    assert normalised_area(np.zeros(500), llm, rag) == pytest.approx(0)
    areas = [normalised_area(rng.random(500), llm, rag) or 0.0 for _ in range(200)]
    assert abs(np.mean(areas)) < 0.02


def test_tied_blocks_are_the_mean_over_all_orders_within_them():
    scores = np.array([2.0, 1, 1, 1, 0])
    llm, rag = np.array([0.0, 1, 0, 1, 0]), np.array([1.0, 0, 1, 1, 0])
    orders = [(0, *middle, 4) for middle in itertools.permutations((1, 2, 3))]
    accuracies = [[np.where(np.isin(range(5), order[:k]), rag, llm).mean() for k in range(6)] for order in orders]
    curve = retrieval_curve(scores, llm, rag)
    assert curve.at(np.arange(6) / 5) == pytest.approx(np.mean(accuracies, axis=0))


def test_without_any_difference_there_is_no_normalised_area():
    same = np.array([0.0, 1, 1])
    assert normalised_area(np.array([1.0, 2, 3]), same, same) is None
    assert normalised_area(np.array([1.0, 2, 3]), np.zeros(3), np.ones(3)) is None


def test_three_oracles_worked_by_hand():
    # mended, mended, no difference, no difference, broken
    llm, rag = np.array([0.0, 0, 1, 0, 1]), np.array([1.0, 1, 1, 0, 0])
    found = oracles(llm, rag)
    assert (found.accuracy, found.fewest, found.most) == (0.8, 0.4, 0.8)
    assert found.as_all_rag == pytest.approx(0.2)  # one search more than none: 3 of 5 right, as All-RAG
    assert found.sampled_benefit is None
    assert oracle_curve(llm, rag).at(np.array([0.2, 0.4, 0.8, 1.0])) == pytest.approx([0.6, 0.8, 0.8, 0.6])


def test_the_sampled_benefit_reaches_less_than_the_oracle_where_the_answer_in_use_is_another_draw():
    llm, rag = np.array([0.0, 0, 1, 1]), np.array([1.0, 0, 1, 0])
    assert oracles(llm, rag, rag - llm).sampled_benefit == pytest.approx(1)
    benefit = np.array([0.2, 0.5, 0.1, -0.4])  # most for a question whose greedy answer stays wrong
    # curves .5, .5, .75, .75, .5 of the samples' order and .5, .75, .75, .75, .5 of the oracle's, by trapezoids
    assert oracles(llm, rag, benefit).sampled_benefit == pytest.approx((0.625 - 0.5) / (0.6875 - 0.5))


def test_the_oracles_equal_a_search_over_all_decisions():
    llm, rag = np.random.default_rng(4).integers(0, 2, (2, 8)).astype(float)
    tried = [np.array(decision) for decision in itertools.product((0.0, 1), repeat=8)]
    accuracies = np.array([((1 - p) * llm + p * rag).mean() for p in tried])
    ratios = np.array([p.mean() for p in tried])
    found = oracles(llm, rag)
    assert found.accuracy == accuracies.max()
    at_best = ratios[accuracies > accuracies.max() - 1e-12]
    assert (found.fewest, found.most) == (at_best.min(), at_best.max())
    assert found.as_all_rag == ratios[accuracies > rag.mean() - 1e-12].min()
    best = [accuracies[ratios == k / 8].max() for k in range(9)]
    assert oracle_curve(llm, rag).at(np.arange(9) / 8) == pytest.approx(best)


def test_the_value_is_scikit_learn_s_with_ties_too():
    rng = np.random.default_rng(0)
    truth = rng.random(150) > 0.6
    fine, tied = rng.normal(size=150) + truth, np.round(rng.normal(size=150) + truth)
    scores = {"fine": fine, "tied": tied, "flat": np.ones(150)}
    separations = load("eval/compare_scores.py").separations
    found = {one.name: one for one in separations(truth, scores, "fine")}
    for name, values in scores.items():
        assert found[name].auroc.mean == pytest.approx(roc_auc_score(truth, values), abs=1e-12)
        assert found[name].auroc.low <= found[name].auroc.mean <= found[name].auroc.high
    assert found["flat"].auroc == Delta(0.5, 0.5, 0.5) and found["fine"].minus is None
    assert found["tied"].minus.mean == pytest.approx(found["fine"].auroc.mean - found["tied"].auroc.mean)
    worse = found["flat"].minus  # a score that tells nothing: the difference is above it for certain
    assert 0 < worse.low < worse.mean < worse.high
    assert (found["fine"].n, found["fine"].n_positive) == (150, int(truth.sum()))
    (sides,) = separations(np.array([True, True, False]), {"s": np.array([1.0, 3.0, 10.0])}, "s")
    assert sides.positive[2] == 2.0 and sides.negative == (10.0,) * 5


def test_the_interval_covers_the_truth():
    # normal scores one apart: AUROC = Phi(1 / sqrt 2) = 0.7602
    inside = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        truth = np.arange(120) < 60
        found = interval(auroc_draws(truth, rng.normal(size=120) + truth))
        inside += found.low <= 0.7602 <= found.high
    assert inside >= 35


def test_one_class_alone_is_an_error():
    with pytest.raises(ValueError, match="both classes"):
        auroc_draws(np.array([True, True]), np.zeros(2))


def test_one_computation_gives_scikit_learn_s_values_plain_and_weighted():
    rng = np.random.default_rng(5)
    for n in (2, 3, 40, 300):
        truth = np.arange(n) % 3 == 0
        weights = rng.integers(1, 4, (3, n)).astype(float)
        for scores in (rng.random(n) + truth, np.round(rng.random(n) + truth, 1), np.zeros(n)):
            assert auroc(truth, scores) == pytest.approx([roc_auc_score(truth, scores)], abs=1e-12)
            precision = average_precision_score(truth, scores)
            assert average_precision(truth, scores) == pytest.approx([precision], abs=1e-12)
            areas, means = auroc(truth, scores, weights), average_precision(truth, scores, weights)
            for row, w in enumerate(weights):
                assert areas[row] == pytest.approx(roc_auc_score(truth, scores, sample_weight=w), abs=1e-12)
                assert means[row] == pytest.approx(average_precision_score(truth, scores, sample_weight=w), abs=1e-12)


def test_a_row_without_positives_or_negatives_has_no_area():
    truth, scores = np.array([True, False, True]), np.array([3.0, 2.0, 1.0])
    weights = np.array([[1.0, 0, 1], [0, 1, 0], [1, 1, 1]])
    assert np.isnan(auroc(truth, scores, weights)).tolist() == [True, True, False]
    assert np.isnan(average_precision(truth, scores, weights)).tolist() == [False, True, False]


def test_intervals_draw_whole_clusters():
    """Eight questions of an entity say no more than one of them."""
    rng = np.random.default_rng(0)
    few = rng.random(60) < 0.5
    truth, score = np.repeat(few, 8), np.repeat(rng.normal(size=60) + few, 8)
    alone, together = (interval(auroc_draws(truth, score, of)) for of in (None, [str(i // 8) for i in range(480)]))
    assert alone.mean == pytest.approx(together.mean)
    widths = [one.high - one.low for one in (alone, together)]
    assert widths[1] / widths[0] == pytest.approx(8**0.5, rel=0.15)


def test_draws_of_clusters_with_one_class_are_left_out():
    truth, clusters = np.array([True, False, False]), ["a", "b", "b"]  # half of the draws have one class
    assert interval(auroc_draws(truth, np.array([2.0, 1.0, 3.0]), clusters)) == Delta(0.5, 0.5, 0.5)
