"""Intervals and tests: bootstrap, permutation, McNemar, Holm, agreement."""

import itertools
import math

import numpy as np
import pytest

from kbtrain.evaluation.outcomes import Correctness
from kbtrain.metrics.ranking import normalised_area
from kbtrain.metrics.significance import (
    Delta,
    cluster_counts,
    holm,
    interval,
    mcnemar,
    permutation_ps,
    question_counts,
    random_gate_p,
    resampled_areas,
    resampled_means,
    stratified_counts,
)
from kbtrain.report.examples import part_rows


def test_resampled_means_equal_a_plain_loop_over_the_same_draws():
    columns = np.random.default_rng(0).random((7, 3))
    picked = np.random.default_rng(5).integers(7, size=(20, 7))
    assert resampled_means(columns, 20, seed=5) == pytest.approx(
        np.stack([columns[row].mean(axis=0) for row in [np.arange(7), *picked]])
    )


def test_resampled_areas_equal_the_area_of_each_resample():
    rng = np.random.default_rng(7)
    llm, rag = rng.integers(0, 2, (2, 40)).astype(float)
    orders = [rng.random(40), rng.integers(0, 4, 40) / 4, rag - llm]
    drawn = resampled_areas(orders, llm, rag, 25, seed=9)
    picked = np.random.default_rng(9).integers(40, size=(25, 40))
    expected = [[normalised_area(scores[row], llm[row], rag[row]) for scores in orders] for row in picked]
    assert drawn == pytest.approx(np.array(expected))
    assert drawn[:, 2] == pytest.approx(1)


def test_a_resample_without_anything_to_gain_has_no_area():
    drawn = resampled_areas([np.array([1.0, 2.0])], np.array([0.0, 1.0]), np.array([1.0, 1.0]), 50, seed=0)
    assert 0 < np.isnan(drawn).sum() < 50


def test_whole_clusters_are_drawn_and_means_are_those_of_the_questions_drawn():
    column = np.array([1.0, 1.0, 0.0, 0.5, 1.0])
    clusters = ["a", "b", "a", "c", "c"]
    drawn = resampled_means(np.stack([column, np.ones(5)], axis=1), 200, 3, clusters)
    assert drawn[:, 1] == pytest.approx(1.0)  # a share, whatever the number of questions drawn
    groups = {"a": [1.0, 0.0], "b": [1.0], "c": [0.5, 1.0]}
    drawings = itertools.product(groups.values(), repeat=3)
    possible = {round(sum(map(sum, picked)) / sum(map(len, picked)), 9) for picked in drawings}
    assert {round(float(value), 9) for value in drawn[:, 0]} <= possible
    orders, llm, rag = [np.arange(5.0)], np.array([0.0, 0, 1, 0, 1]), np.array([1.0, 1, 0, 0, 1])
    areas = resampled_areas(orders, llm, rag, 60, 4, clusters)[:, 0]
    for counts, area in zip(np.concatenate(list(question_counts(5, 60, 4, clusters))), areas, strict=True):
        rows = np.repeat(np.arange(5), counts.astype(int))
        expected = normalised_area(orders[0][rows], llm[rows], rag[rows])
        assert np.isnan(area) if expected is None else area == pytest.approx(expected)


def test_a_gain_is_certain_if_its_whole_interval_is_above_zero():
    found = [Delta(1.0, low, 2.0).above_zero for low in (-0.1, 0.0, 1e-15, 0.1)]
    assert found == [False, False, False, True]


def test_the_first_row_of_counts_is_what_was_observed_and_clusters_stay_together():
    truth = np.array([True, False, False, True])
    counts = np.concatenate(list(stratified_counts(truth, 30, 1)))
    assert counts.shape == (31, 4) and (counts[0] == 1).all() and (counts[1:] != 1).any()
    assert (counts[:, truth].sum(axis=1) == 2).all() and (counts[:, ~truth].sum(axis=1) == 2).all()
    whole = cluster_counts(["b", "a", "b", "c", "a"], 30, 1)
    assert whole.shape == (31, 5) and (whole[0] == 1).all() and (whole[1:] != 1).any()
    assert (whole[:, 0] == whole[:, 2]).all() and (whole[:, 1] == whole[:, 4]).all()


def test_intervals_of_questions_that_share_entities_cover_95_times_in_100_only_by_clusters():
    rng, hits = np.random.default_rng(8), np.zeros(2)
    clusters = [f"entity{i // 4}" for i in range(240)]
    for trial in range(400):
        gains = np.repeat(rng.choice([-1.0, 0.0, 1.0], p=[0.2, 0.4, 0.4], size=60), 4)  # four questions, one fate
        for i, names in enumerate((None, clusters)):
            found = interval(resampled_means(gains[:, None], 500, trial, names)[:, 0])
            hits[i] += found.low <= 0.2 <= found.high
    assert hits[0] / 400 < 0.75 and abs(hits[1] / 400 - 0.95) <= 0.03, hits / 400


def test_mcnemar_worked_by_hand():
    first = np.array([1.0] * 8 + [0.0] * 2 + [1.0] * 5 + [0.0] * 5)
    found = mcnemar(first, np.array([0.0] * 8 + [1.0] * 2 + [1.0] * 5 + [0.0] * 5))
    assert found is not None
    assert (found.only_first, found.only_second) == (8, 2)
    # two-sided: 2 * P(at most 2 heads in 10 tosses)
    assert found.p == pytest.approx(2 * sum(math.comb(10, k) for k in range(3)) / 2**10)


def test_mcnemar_equals_the_permutation_of_pairs_and_expected_accuracies_have_none():
    assert mcnemar(np.array([0.5, 1]), np.array([0.0, 1])) is None
    first, second = np.random.default_rng(0).integers(0, 2, (2, 14)).astype(float)
    differences = (first - second)[first != second]
    flips = [abs(np.dot(differences, signs)) for signs in itertools.product((1, -1), repeat=len(differences))]
    found = mcnemar(first, second)
    assert found is not None
    assert found.p == pytest.approx(np.mean(np.array(flips) >= abs(differences.sum()) - 1e-12))


def test_holm_worked_by_hand():
    # sorted .01 .02 .03 .04 times 4 3 2 1 = .04 .06 .06 .04, made monotone
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_random_gate_has_a_uniform_permutation_p():
    rng = np.random.default_rng(2)
    gates = (rng.random((2000, 80)) < 0.4).astype(float)
    values = permutation_ps(rng.normal(size=80), gates, 999, seed=0)
    assert np.mean(np.array(values) <= 0.05) == pytest.approx(0.05, abs=0.015)
    assert min(values) >= 1 / 1000


def test_entities_are_permuted_as_a_whole():
    """Three entities of two questions: a gate that searches for one of them has three permutations."""
    gain = np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    retrieve = np.array([[1.0, 1.0, 0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0, 0.0, 0.0]])
    names = ["a", "a", "b", "b", "c", "c"]
    whole = permutation_ps(gain, retrieve, 3000, 0, names)
    assert whole == pytest.approx([1 / 3, 2 / 3], abs=0.03)
    assert permutation_ps(gain, retrieve, 3000, 0) == pytest.approx([1 / 15, 9 / 15], abs=0.03)
    order = [0, 2, 4, 1, 3, 5]  # the same, its entities' questions apart
    apart = permutation_ps(gain[order], retrieve[:, order], 3000, 0, [names[i] for i in order])
    assert apart == pytest.approx(whole, abs=0.03)


def test_what_an_entity_has_more_than_those_it_is_exchanged_with_keeps_its_place():
    gain = np.array([5.0, 0.0, 0.0, *np.arange(4.0)])
    names = ["large", "large", "large", "b", "c", "d", "e"]
    (p,) = permutation_ps(gain, np.array([[0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]]), 99, 0, names)
    assert p == 1.0  # the large one's second and third question are exchanged with none
    (p,) = permutation_ps(gain, np.array([[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]), 4000, 0, names)
    assert p == pytest.approx(1 / 5, abs=0.03)


def test_of_fourteen_gates_that_know_nothing_one_is_called_better_in_a_twentieth_of_the_worlds():
    """Gains and decisions agree within an entity: questions permuted one by one call a gate better in every fifth."""
    rng = np.random.default_rng(0)
    called, one_by_one = [], []
    for world in range(100):
        names = np.repeat(np.arange(60), np.minimum(rng.geometric(0.36, 60), 9))
        value = rng.normal(size=60)[names] + 0.7 * rng.normal(size=len(names))
        gain = (value > 1).astype(float) - (value < -1.5)
        scores = rng.normal(size=(14, 60))[:, names] + 0.5 * rng.normal(size=(14, len(names)))
        gates = (scores > 0).astype(float)
        called.append(min(holm(permutation_ps(gain, gates, 999, world, [str(i) for i in names]))) < 0.05)
        exact = [random_gate_p(gain, int(gate.sum()), float(gate @ gain)) for gate in gates]
        one_by_one.append(min(holm([p for p in exact if p is not None])) < 0.05)
    assert np.mean(called) < 0.09 < 0.15 < np.mean(one_by_one)


def test_the_exact_p_of_four_questions_is_that_of_their_six_pairs():
    gain = np.array([1.0, 1.0, -1.0, 0.0])  # pairs gain 2, 1, 1, 0, 0 and -1
    assert [random_gate_p(gain, 2, reached) for reached in (2, 1, 0, -1)] == pytest.approx([1 / 6, 3 / 6, 5 / 6, 1.0])
    assert [random_gate_p(gain, 3, reached) for reached in (2, 1, 0)] == pytest.approx([1 / 4, 2 / 4, 1.0])
    assert random_gate_p(gain, 0, 0) == random_gate_p(gain, 4, 1) == pytest.approx(1.0)  # nothing is chosen
    assert random_gate_p(np.array([0.5, 0.0]), 1, 0.5) is None


def test_where_every_search_helps_no_choice_is_better_than_chance():
    for searches in (0, 4, 10):
        assert random_gate_p(np.ones(10), searches, float(searches)) == pytest.approx(1.0)


ANSWERS = Correctness("greedy", llm=np.array([1.0, 0, 0, 1, 1, 0]), rag=np.array([1.0, 1, 0, 0, 1, 1]))
GATE = np.array([0.0, 1, 1, 1, 0, 0])


def test_a_row_worked_by_hand():
    first, second = part_rows(ANSWERS, GATE, ["a", "a", "a", "b", "b", "b"])
    assert (first.group, first.n, first.llm_only, first.all_rag) == ("a", 3, pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert (first.ratio, first.accuracy) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert first.random == pytest.approx(1 / 3 * 1 / 3 + 2 / 3 * 2 / 3)
    assert first.gain.mean == pytest.approx(first.accuracy - first.random)
    assert second.accuracy == pytest.approx(1 / 3)  # the gate breaks question 3


def test_questions_without_a_group_are_in_no_row_and_order_is_by_name():
    found = part_rows(ANSWERS, GATE, ["z", None, "a", None, "z", "a"])
    assert [(row.group, row.n) for row in found] == [("a", 2), ("z", 2)]


def test_intervals_draw_whole_clusters():
    rng = np.random.default_rng(0)
    llm, rag, gate = (np.repeat(rng.integers(0, 2, 50).astype(float), 8) for _ in range(3))
    alone, together = (
        part_rows(Correctness("greedy", llm, rag, clusters), gate, ["a"] * 400)[0].gain
        for clusters in (None, tuple(str(i // 8) for i in range(400)))
    )
    assert alone.mean == together.mean
    # eight questions of an entity say no more than one
    assert (together.high - together.low) / (alone.high - alone.low) == pytest.approx(8**0.5, rel=0.1)


def test_intervals_cover_the_truth_about_95_times_in_100():
    rng = np.random.default_rng(11)
    hits = 0
    for trial in range(300):
        gains = rng.choice([-1.0, 0, 1], p=[0.1, 0.6, 0.3], size=150)  # true mean 0.2
        found = interval(resampled_means(gains[:, None], 500, seed=trial)[:, 0])
        hits += found.low <= 0.2 <= found.high
    assert 0.90 <= hits / 300 <= 0.98


def test_paired_intervals_of_accuracy_and_ratio_cover_95_times_in_100_in_500_simulations():
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


def test_the_exact_p_is_the_share_of_random_gates_that_are_as_right():
    llm, rag = (np.random.default_rng(4).random((2, 60)) < 0.5).astype(float)
    gains = np.random.default_rng(1).permuted(np.tile(rag - llm, (20_000, 1)), axis=1)[:, :25].sum(axis=1)
    for reached in (-3, 0, 2, 5):
        at_least = np.mean(gains >= reached)
        assert random_gate_p(rag - llm, 25, reached) == pytest.approx(at_least, abs=0.012)
