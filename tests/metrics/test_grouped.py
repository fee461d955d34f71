"""Figures by groups of questions, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kbtrain.evaluation.groups import JudgedQuestions, group_rows, quantile_groups, ranked_within

LLM = np.array([1.0, 0, 0, 1, 1, 0])
RAG = np.array([1.0, 1, 0, 0, 1, 1])
GATE = np.array([0.0, 1, 1, 1, 0, 0])


def test_a_row_worked_by_hand() -> None:
    first, second = group_rows(JudgedQuestions(LLM, RAG, {"gate": GATE}), ["a", "a", "a", "b", "b", "b"])
    assert (first.group, first.n, first.llm_only, first.all_rag) == ("a", 3, pytest.approx(1 / 3), pytest.approx(2 / 3))
    cell = first.gates["gate"]
    assert (cell.ratio, cell.accuracy) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert cell.random == pytest.approx(1 / 3 * 1 / 3 + 2 / 3 * 2 / 3)
    assert cell.gain.mean == pytest.approx(cell.accuracy - cell.random)
    assert (cell.n_known, cell.known, cell.unknown) == (1, 1.0, 0.0)
    assert second.gates["gate"].accuracy == pytest.approx(1 / 3)  # the gate breaks question 3


def test_questions_without_a_group_are_in_no_row_and_order_is_by_name() -> None:
    found = group_rows(JudgedQuestions(LLM, RAG, {"gate": GATE}), ["z", None, "a", None, "z", "a"])
    assert [(row.group, row.n) for row in found] == [("a", 2), ("z", 2)]


def test_a_gate_that_never_retrieves_has_no_unknown_questions() -> None:
    cell = group_rows(JudgedQuestions(LLM, RAG, {"never": np.zeros(6)}), ["a"] * 6)[0].gates["never"]
    assert (cell.known, cell.unknown, cell.gain.mean) == (0.5, None, 0.0)


def test_the_mean_over_data_sets_counts_each_the_same() -> None:
    *found, mean = group_rows(JudgedQuestions(LLM, RAG, {"gate": GATE}), ["a", "a", "a", "a", "b", "b"], mean=True)
    assert (mean.group, mean.n, len(found)) == ("mean", 6, 2)
    assert mean.llm_only == pytest.approx((0.5 + 0.5) / 2)
    assert mean.gates["gate"].accuracy == np.mean([row.gates["gate"].accuracy for row in found])
    assert mean.gates["gate"].unknown == found[0].gates["gate"].unknown  # the other one retrieves nothing
    assert len(group_rows(JudgedQuestions(LLM, RAG, {"gate": GATE}), ["a"] * 6, mean=True)) == 1


def test_the_means_interval_is_that_of_independent_data_sets() -> None:
    rng = np.random.default_rng(0)
    llm, rag, gate = (rng.integers(0, 2, 800).astype(float) for _ in range(3))
    groups = ["a", "b", "c", "d"] * 200
    *found, mean = group_rows(JudgedQuestions(llm, rag, {"gate": gate}), groups, mean=True)
    widths = [row.gates["gate"].gain.high - row.gates["gate"].gain.low for row in [*found, mean]]
    assert widths[-1] == pytest.approx(np.sqrt(np.sum(np.square(widths[:-1]))) / 4, rel=0.1)


def test_intervals_draw_whole_clusters() -> None:
    rng = np.random.default_rng(0)
    llm, rag, gate = (np.repeat(rng.integers(0, 2, 50).astype(float), 8) for _ in range(3))
    alone, together = (
        group_rows(JudgedQuestions(llm, rag, {"gate": gate}, clusters), ["a"] * 400)[0].gates["gate"].gain
        for clusters in (None, [str(i // 8) for i in range(400)])
    )
    assert alone.mean == together.mean
    # eight questions of an entity say no more than one
    assert (together.high - together.low) / (alone.high - alone.low) == pytest.approx(8**0.5, rel=0.1)


def test_quantiles_keep_equal_values_together_and_name_their_ends() -> None:
    assert quantile_groups([1, 2, 3, 4], 2) == ["1 (low)", "1 (low)", "2 (high)", "2 (high)"]
    assert quantile_groups([0, 0, 0, 0, 5, None], 3) == ["1 (low)"] * 4 + ["2 (high)", None]
    assert quantile_groups([7, 7, 7], 3) == ["1", "1", "1"]
    assert quantile_groups([None, None], 3) == [None, None]
    groups = quantile_groups(np.random.default_rng(0).random(1000).tolist(), 5)
    assert {groups.count(name) for name in set(groups)} == {200}


def test_ranks_within_a_data_set_know_no_units_and_leave_ties_alike() -> None:
    found = ranked_within([5.0, 0.1, None, 9000.0, 0.1, 7000.0], ["a", "b", "a", "a", "b", "a"])
    assert found == [pytest.approx(1 / 6), 0.5, None, pytest.approx(5 / 6), 0.5, 0.5]
