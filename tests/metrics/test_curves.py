"""The accuracy-against-ratio curve, its area, and how ties are treated."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kbtrain.metrics.ranking import normalised_area, oracle_curve, oracles, retrieval_curve


def test_curve_worked_by_hand() -> None:
    llm, rag = np.array([0.0, 1, 0, 1]), np.array([1.0, 1, 0, 0])
    curve = retrieval_curve(np.array([0.9, 0.1, 0.5, 0.3]), llm, rag)
    # order: question 0 (mended), 2 (no difference), 3 (broken), 1 (no difference)
    assert curve.ratio.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert curve.accuracy.tolist() == [0.5, 0.75, 0.75, 0.5, 0.5]
    assert curve.area == pytest.approx((0.625 + 0.75 + 0.625 + 0.5) / 4)


def test_the_oracle_order_has_area_1_and_its_reverse_is_below_0() -> None:
    llm, rag = np.array([0.0, 1, 0, 1, 0]), np.array([1.0, 1, 0, 0, 1])
    assert normalised_area(rag - llm, llm, rag) == pytest.approx(1)
    assert normalised_area(llm - rag, llm, rag) == pytest.approx(-1)


def test_equal_scores_are_as_good_as_random() -> None:
    rng = np.random.default_rng(1)
    llm, rag = rng.integers(0, 2, (2, 500)).astype(float)
    assert normalised_area(np.zeros(500), llm, rag) == pytest.approx(0)
    areas = [normalised_area(rng.random(500), llm, rag) or 0.0 for _ in range(200)]
    assert abs(np.mean(areas)) < 0.02


def test_tied_blocks_are_the_mean_over_all_orders_within_them() -> None:
    scores = np.array([2.0, 1, 1, 1, 0])
    llm, rag = np.array([0.0, 1, 0, 1, 0]), np.array([1.0, 0, 1, 1, 0])
    orders = [(0, *middle, 4) for middle in itertools.permutations((1, 2, 3))]
    accuracies = [[np.where(np.isin(range(5), order[:k]), rag, llm).mean() for k in range(6)] for order in orders]
    curve = retrieval_curve(scores, llm, rag)
    assert curve.at(np.arange(6) / 5) == pytest.approx(np.mean(accuracies, axis=0))


def test_no_curve_beats_the_oracle_at_any_ratio() -> None:
    rng = np.random.default_rng(2)
    llm, rag = rng.random((2, 60))
    grid = np.linspace(0, 1, 61)
    best = oracle_curve(llm, rag).at(grid)
    for _ in range(50):
        assert (retrieval_curve(rng.random(60), llm, rag).at(grid) <= best + 1e-12).all()


def test_without_any_difference_there_is_no_normalised_area() -> None:
    same = np.array([0.0, 1, 1])
    assert normalised_area(np.array([1.0, 2, 3]), same, same) is None
    assert normalised_area(np.array([1.0, 2, 3]), np.zeros(3), np.ones(3)) is None


def test_three_oracles_worked_by_hand() -> None:
    # mended, mended, no difference, no difference, broken
    llm, rag = np.array([0.0, 0, 1, 0, 1]), np.array([1.0, 1, 1, 0, 0])
    found = oracles(llm, rag)
    assert (found.accuracy, found.fewest, found.most) == (0.8, 0.4, 0.8)
    assert found.as_all_rag == pytest.approx(0.2)  # one search more than none: 3 of 5 right, as All-RAG
    assert found.sampled_benefit is None
    assert oracle_curve(llm, rag).at(np.array([0.2, 0.4, 0.8, 1.0])) == pytest.approx([0.6, 0.8, 0.8, 0.6])


def test_the_sampled_benefit_reaches_less_than_the_oracle_where_the_answer_in_use_is_another_draw() -> None:
    llm, rag = np.array([0.0, 0, 1, 1]), np.array([1.0, 0, 1, 0])
    assert oracles(llm, rag, rag - llm).sampled_benefit == pytest.approx(1)
    benefit = np.array([0.2, 0.5, 0.1, -0.4])  # most for a question whose greedy answer stays wrong
    # curves .5, .5, .75, .75, .5 of the samples' order and .5, .75, .75, .75, .5 of the oracle's, by trapezoids
    assert oracles(llm, rag, benefit).sampled_benefit == pytest.approx((0.625 - 0.5) / (0.6875 - 0.5))


def test_oracles_where_retrieval_only_harms() -> None:
    found = oracles(np.ones(4), np.array([1.0, 1, 0, 0]))
    assert (found.accuracy, found.fewest, found.most, found.as_all_rag) == (1, 0, 0.5, 0)


def test_the_oracles_equal_a_search_over_all_decisions() -> None:
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
