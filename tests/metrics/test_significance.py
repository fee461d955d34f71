"""The paired bootstrap and the random gates."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kbtrain.metrics import significance
from kbtrain.metrics.ranking import normalised_area
from kbtrain.metrics.significance import (
    Delta,
    cluster_counts,
    interval,
    question_counts,
    random_gates,
    resampled_areas,
    resampled_means,
    resampled_tables,
    stratified_counts,
)


def test_resampled_means_equal_a_plain_loop_over_the_same_draws() -> None:
    columns = np.random.default_rng(0).random((7, 3))
    rng = np.random.default_rng(5)
    picked = rng.integers(7, size=(20, 7))
    assert resampled_means(columns, 20, seed=5) == pytest.approx(
        np.stack([columns[row].mean(axis=0) for row in [np.arange(7), *picked]])
    )


def test_the_result_does_not_depend_on_the_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = np.random.default_rng(0).random((50, 2))
    whole = resampled_means(columns, 100, seed=1)
    monkeypatch.setattr(significance, "_CELLS", 70)
    assert resampled_means(columns, 100, seed=1) == pytest.approx(whole)  # eight resamples at a time
    monkeypatch.setattr(significance, "_ROWS", 1)
    assert resampled_means(columns, 100, seed=1) == pytest.approx(whole)


def test_questions_are_drawn_once_for_many_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [np.random.default_rng(i).random((50, 1 + i)) for i in range(3)]
    alone = [resampled_means(table, 100, seed=1) for table in tables]
    drawn: list[int] = []
    counts = significance.question_counts
    monkeypatch.setattr(significance, "question_counts", lambda n, *rest: drawn.append(n) or counts(n, *rest))
    together = resampled_tables(tables, 100, seed=1)
    assert drawn == [50] and all((a == b).all() for a, b in zip(alone, together, strict=True))
    assert resampled_tables([], 100, seed=1) == []


def test_columns_stay_paired() -> None:
    column = np.random.default_rng(0).random(50)
    drawn = resampled_means(np.stack([column, column + 1], axis=1), 100, seed=0)
    assert drawn[:, 1] - drawn[:, 0] == pytest.approx(1)


def test_intervals_cover_the_truth_about_95_times_in_100() -> None:
    rng = np.random.default_rng(11)
    hits = 0
    for trial in range(300):
        gains = rng.choice([-1.0, 0, 1], p=[0.1, 0.6, 0.3], size=150)  # true mean 0.2
        found = interval(resampled_means(gains[:, None], 500, seed=trial)[:, 0])
        hits += found.low <= 0.2 <= found.high
    assert 0.90 <= hits / 300 <= 0.98


def test_random_gates_have_the_expected_mean_and_the_exact_ends() -> None:
    rng = np.random.default_rng(3)
    llm, rag = (rng.random((2, 200)) < [[0.3], [0.6]]).astype(float)
    drawn = random_gates(llm, rag, [0, 60, 200], 1000, seed=0)
    assert drawn.shape == (1000, 3)
    assert (drawn[:, 0] == llm.mean()).all()
    assert drawn[:, 2] == pytest.approx(rag.mean())
    assert drawn[:, 1].mean() == pytest.approx(0.7 * llm.mean() + 0.3 * rag.mean(), abs=0.003)
    # hypergeometric spread of the sum of 60 gains drawn from 200 without replacement
    expected = np.sqrt(60 * (rag - llm).var() * (140 / 199)) / 200
    assert drawn[:, 1].std() == pytest.approx(expected, rel=0.1)


def test_resampled_areas_equal_the_area_of_each_resample() -> None:
    rng = np.random.default_rng(7)
    llm, rag = rng.integers(0, 2, (2, 40)).astype(float)
    orders = [rng.random(40), rng.integers(0, 4, 40) / 4, rag - llm]
    drawn = resampled_areas(orders, llm, rag, 25, seed=9)
    picked = np.random.default_rng(9).integers(40, size=(25, 40))
    expected = [[normalised_area(scores[row], llm[row], rag[row]) for scores in orders] for row in picked]
    assert drawn == pytest.approx(np.array(expected))
    assert drawn[:, 2] == pytest.approx(1)


def test_a_resample_without_anything_to_gain_has_no_area() -> None:
    drawn = resampled_areas([np.array([1.0, 2.0])], np.array([0.0, 1.0]), np.array([1.0, 1.0]), 50, seed=0)
    assert 0 < np.isnan(drawn).sum() < 50


def test_paired_intervals_of_accuracy_and_ratio_cover_95_times_in_100_in_500_simulations() -> None:
    rng = np.random.default_rng(5)
    # retrieval mends .6 * .7 and breaks .4 * .1 of the questions; the gates retrieve for .3 and .5 of them
    expected = [(0.3 - 0.5) * (0.6 * 0.7 - 0.4 * 0.1), 0.3 - 0.5]
    hits = np.zeros(2)
    for trial in range(500):
        llm = rng.random(200) < 0.4
        rag = np.where(llm, rng.random(200) < 0.9, rng.random(200) < 0.7)
        first, second = rng.random(200) < 0.3, rng.random(200) < 0.5
        gain = rag.astype(float) - llm
        columns = np.stack([(first.astype(float) - second) * gain, first.astype(float) - second], axis=1)
        drawn = resampled_means(columns, 1000, seed=trial)
        for i in range(2):
            found = interval(drawn[:, i])
            hits[i] += found.low <= expected[i] <= found.high
    assert (abs(hits / 500 - 0.95) <= 0.02).all(), hits / 500


def test_whole_clusters_are_drawn_and_means_are_those_of_the_questions_drawn() -> None:
    column = np.array([1.0, 1.0, 0.0, 0.5, 1.0])
    clusters = ["a", "a", "b", "c", "c"]
    drawn = resampled_means(np.stack([column, np.ones(5)], axis=1), 200, 3, clusters)
    assert drawn[:, 1] == pytest.approx(1.0)  # a share, whatever the number of questions drawn
    groups = {"a": [1.0, 1.0], "b": [0.0], "c": [0.5, 1.0]}
    possible = {
        round(sum(map(sum, picked)) / sum(map(len, picked)), 9)
        for picked in itertools.product(groups.values(), repeat=3)
    }
    assert {round(float(value), 9) for value in drawn[:, 0]} <= possible
    orders, llm, rag = [np.arange(5.0)], np.array([0.0, 0, 1, 0, 1]), np.array([1.0, 1, 0, 0, 1])
    areas = resampled_areas(orders, llm, rag, 60, 4, clusters)[:, 0]
    for counts, area in zip(np.concatenate(list(question_counts(5, 60, 4, clusters))), areas, strict=True):
        rows = np.repeat(np.arange(5), counts.astype(int))
        expected = normalised_area(orders[0][rows], llm[rows], rag[rows])
        assert np.isnan(area) if expected is None else area == pytest.approx(expected)


def test_a_gain_is_certain_if_its_whole_interval_is_above_zero() -> None:
    found = [Delta(1.0, low, 2.0).above_zero for low in (-0.1, 0.0, 1e-15, 0.1)]
    assert found == [False, False, False, True]


def test_the_first_row_of_counts_is_what_was_observed_and_clusters_stay_together() -> None:
    truth = np.array([True, False, False, True])
    counts = np.concatenate(list(stratified_counts(truth, 30, 1)))
    assert counts.shape == (31, 4) and (counts[0] == 1).all() and (counts[1:] != 1).any()
    assert (counts[:, truth].sum(axis=1) == 2).all() and (counts[:, ~truth].sum(axis=1) == 2).all()
    whole = cluster_counts(["b", "a", "b", "c", "a"], 30, 1)
    assert whole.shape == (31, 5) and (whole[0] == 1).all() and (whole[1:] != 1).any()
    assert (whole[:, 0] == whole[:, 2]).all() and (whole[:, 1] == whole[:, 4]).all()


def test_questions_of_one_cluster_are_drawn_together_wherever_they_stand() -> None:
    (counts,) = question_counts(5, 50, 3, ["b", "a", "b", "c", "a"])
    assert (counts[:, 0] == counts[:, 2]).all() and (counts[:, 1] == counts[:, 4]).all()
    assert ((counts[:, 0] + counts[:, 1] + counts[:, 3]) == 3).all() and len(np.unique(counts[:, 3])) > 2


def test_intervals_of_questions_that_share_entities_cover_95_times_in_100_only_by_clusters() -> None:
    rng, hits = np.random.default_rng(8), np.zeros(2)
    clusters = [f"entity{i // 4}" for i in range(240)]
    for trial in range(400):
        gains = np.repeat(rng.choice([-1.0, 0.0, 1.0], p=[0.2, 0.4, 0.4], size=60), 4)  # four questions, one fate
        for i, names in enumerate((None, clusters)):
            found = interval(resampled_means(gains[:, None], 500, trial, names)[:, 0])
            hits[i] += found.low <= 0.2 <= found.high
    assert hits[0] / 400 < 0.75 and abs(hits[1] / 400 - 0.95) <= 0.03, hits / 400
