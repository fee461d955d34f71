"""McNemar, Holm and the permutation test against values worked by hand and other implementations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from kbtrain.metrics.significance import holm, mcnemar, permutation_ps, random_gate_p, random_gates


def test_mcnemar_worked_by_hand() -> None:
    first = np.array([1.0] * 8 + [0.0] * 2 + [1.0] * 5 + [0.0] * 5)
    second = np.array([0.0] * 8 + [1.0] * 2 + [1.0] * 5 + [0.0] * 5)
    found = mcnemar(first, second)
    assert found is not None
    assert (found.only_first, found.only_second) == (8, 2)
    # two-sided: 2 * P(at most 2 heads in 10 tosses)
    assert found.p == pytest.approx(2 * sum(math.comb(10, k) for k in range(3)) / 2**10)


def test_gates_that_agree_everywhere_have_p_1() -> None:
    same = np.array([1.0, 0, 1])
    found = mcnemar(same, same)
    assert found is not None and found.p == 1


def test_expected_accuracies_have_no_mcnemar_test() -> None:
    assert mcnemar(np.array([0.5, 1]), np.array([0.0, 1])) is None


def test_mcnemar_equals_the_permutation_of_pairs() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 2, (2, 14)).astype(float)
    differences = (first - second)[first != second]
    flips = [abs(np.dot(differences, signs)) for signs in itertools.product((1, -1), repeat=len(differences))]
    found = mcnemar(first, second)
    assert found is not None
    assert found.p == pytest.approx(np.mean(np.array(flips) >= abs(differences.sum()) - 1e-12))


def test_holm_worked_by_hand() -> None:
    # sorted .01 .02 .03 .04 times 4 3 2 1 = .04 .06 .06 .04, made monotone
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_rejects_what_the_step_down_procedure_rejects() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        values = (rng.random(6) ** 3).tolist()
        rejected = set()
        for step, i in enumerate(np.argsort(values)):
            if values[i] > 0.05 / (6 - step):
                break
            rejected.add(int(i))
        assert {i for i, p in enumerate(holm(values)) if p <= 0.05} == rejected


def test_a_random_gate_has_a_uniform_permutation_p() -> None:
    rng = np.random.default_rng(2)
    gates = (rng.random((2000, 80)) < 0.4).astype(float)
    values = permutation_ps(rng.normal(size=80), gates, 999, seed=0)
    assert np.mean(np.array(values) <= 0.05) == pytest.approx(0.05, abs=0.015)
    assert min(values) >= 1 / 1000


def test_permuted_gains_that_are_as_high_count_against_the_gate() -> None:
    gain = np.full(8, 0.1)
    assert permutation_ps(gain, np.eye(8)[:1], 9, seed=0) == [1.0]
    assert permutation_ps(np.eye(400)[0], np.eye(400)[:1], 9, seed=0) == [0.1]  # never 0


def test_entities_are_permuted_as_a_whole() -> None:
    """Three entities of two questions: a gate that searches for one of them has three permutations."""
    gain = np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    retrieve = np.array([[1.0, 1.0, 0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0, 0.0, 0.0]])
    names = ["a", "a", "b", "b", "c", "c"]
    whole = permutation_ps(gain, retrieve, 3000, 0, names)
    assert whole == pytest.approx([1 / 3, 2 / 3], abs=0.03)
    alone = permutation_ps(gain, retrieve, 3000, 0)
    assert alone == pytest.approx([1 / 15, 9 / 15], abs=0.03)
    order = [0, 2, 4, 1, 3, 5]  # the same, its entities' questions apart
    apart = permutation_ps(gain[order], retrieve[:, order], 3000, 0, [names[i] for i in order])
    assert apart == pytest.approx(whole, abs=0.03)


def test_what_an_entity_has_more_than_those_it_is_exchanged_with_keeps_its_place() -> None:
    gain = np.array([5.0, 0.0, 0.0, *np.arange(4.0)])
    names = ["large", "large", "large", "b", "c", "d", "e"]
    (p,) = permutation_ps(gain, np.array([[0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]]), 99, 0, names)
    assert p == 1.0  # the large one's second and third question are exchanged with none
    (p,) = permutation_ps(gain, np.array([[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]), 4000, 0, names)
    assert p == pytest.approx(1 / 5, abs=0.03)


def test_of_fourteen_gates_that_know_nothing_one_is_called_better_in_a_twentieth_of_the_worlds() -> None:
    """Gains and decisions agree within an entity: questions permuted one by one call a gate better in every fifth."""
    rng = np.random.default_rng(0)
    called, one_by_one = [], []
    for world in range(200):
        sizes = np.minimum(rng.geometric(0.36, 60), 9)
        names = np.repeat(np.arange(60), sizes)
        value = rng.normal(size=60)[names] + 0.7 * rng.normal(size=len(names))
        gain = (value > 1).astype(float) - (value < -1.5)
        scores = rng.normal(size=(14, 60))[:, names] + 0.5 * rng.normal(size=(14, len(names)))
        gates = (scores > 0).astype(float)
        called.append(min(holm(permutation_ps(gain, gates, 999, world, [str(i) for i in names]))) < 0.05)
        exact = [random_gate_p(gain, int(gate.sum()), float(gate @ gain)) for gate in gates]
        one_by_one.append(min(holm([p for p in exact if p is not None])) < 0.05)
    assert np.mean(called) < 0.09 < 0.15 < np.mean(one_by_one)


def test_the_exact_p_of_four_questions_is_that_of_their_six_pairs() -> None:
    gain = np.array([1.0, 1.0, -1.0, 0.0])  # pairs gain 2, 1, 1, 0, 0 and -1
    assert [random_gate_p(gain, 2, reached) for reached in (2, 1, 0, -1)] == pytest.approx([1 / 6, 3 / 6, 5 / 6, 1.0])
    assert [random_gate_p(gain, 3, reached) for reached in (2, 1, 0)] == pytest.approx([1 / 4, 2 / 4, 1.0])
    assert random_gate_p(gain, 0, 0) == random_gate_p(gain, 4, 1) == pytest.approx(1.0)  # nothing is chosen
    assert random_gate_p(np.array([0.5, 0.0]), 1, 0.5) is None


def test_the_exact_p_is_the_share_of_random_gates_that_are_as_right() -> None:
    rng = np.random.default_rng(4)
    llm, rag = (rng.random((2, 60)) < 0.5).astype(float)
    drawn = random_gates(llm, rag, [25], 20_000, seed=1)[:, 0]
    for reached in (-3, 0, 2, 5):
        at_least = np.mean(drawn >= llm.mean() + reached / 60 - 1e-12)
        assert random_gate_p(rag - llm, 25, reached) == pytest.approx(at_least, abs=0.012)
