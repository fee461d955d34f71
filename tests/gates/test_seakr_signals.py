"""U with its floor and ceiling, and the cheap signals: values worked by hand and by second implementations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbtrain.errors import UserError
from kbtrain.gates.seakr import signals as seakr
from kbtrain.gates.seakr.signals import SIGNALS, ceiling, floor, measure, nonempty_answers
from kbtrain.llm.sampler.state_sampler import AnswerWithStates
from kbtrain.records import Sample


def unit(k: int, d: int = 8) -> np.ndarray:
    """k equal rows of mean 0 and squared norm 1."""
    row = np.zeros(d)
    row[:2] = np.array([1, -1]) / math.sqrt(2)
    return np.tile(row, (k, 1))


def orthogonal(k: int, squared_norm: float) -> np.ndarray:
    """Rows (e_2i - e_2i+1) of mean 0 that are orthogonal to each other."""
    z = np.zeros((k, 2 * k))
    for i in range(k):
        z[i, 2 * i : 2 * i + 2] = np.array([1, -1]) * math.sqrt(squared_norm / 2)
    return z


@pytest.mark.parametrize(("k", "published"), [(20, -6.41), (5, -5.20)])
def test_identical_states_give_the_floor_that_the_paper_s_threshold_stands_on(k, published):
    assert seakr.uncertainty(unit(k)) == pytest.approx(seakr.floor(1.0, k), abs=1e-12)
    assert seakr.floor(1.0, k) == pytest.approx(published, abs=0.005)


def test_orthogonal_states_give_the_ceiling_worked_by_hand():
    # G = 2 I for squared norm 2, so det = 2.001 ** 3, and U = ln 2.001
    assert seakr.uncertainty(orthogonal(3, 2.0)) == pytest.approx(math.log(2.001), abs=1e-12)
    assert seakr.ceiling(2.0) == pytest.approx(math.log(2.001), abs=1e-15)


def test_two_states_worked_by_hand():
    # rows (1, -1) and (1, 1): the second is centred to 0, so G = [[2, 0], [0, 0]]
    assert seakr.uncertainty([[1, -1], [1, 1]]) == pytest.approx((math.log(2.001) + math.log(0.001)) / 2, abs=1e-12)


@given(
    st.integers(0, 10_000), st.integers(2, 20), st.sampled_from([1e-3, 1e-2, 1.0]), st.sampled_from([1e-2, 1.0, 30.0])
)
def test_eigenvalues_agree_and_floor_and_ceiling_hold(seed, k, alpha, size):
    z = np.random.default_rng(seed).normal(size=(k, 48)) * size
    centred = z - z.mean(axis=1, keepdims=True)
    singular = np.linalg.svd(centred, compute_uv=False)
    eigen = float(np.log(singular**2 + alpha).sum()) / k
    found = seakr.uncertainty(z, alpha)
    assert found == pytest.approx(eigen, abs=1e-9)
    norm = float((centred**2).sum(axis=1).mean())
    assert seakr.squared_norm(seakr.gram(z)) == pytest.approx(norm)
    assert seakr.floor(norm, k, alpha) - 1e-9 <= found <= seakr.ceiling(norm, alpha) + 1e-9


def test_huge_states_whose_determinant_rounds_to_nothing_still_give_their_floor():
    row = np.linspace(-1e6, 1e6, 64)
    assert seakr.uncertainty(np.tile(row, (20, 1))) == pytest.approx(seakr.floor(float(row @ row), 20), abs=0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_state_that_is_no_number_is_one_line(bad):
    z = np.ones((3, 4))
    z[1, 2] = bad
    for function in (seakr.uncertainty, seakr.eigen_score):
        with pytest.raises(UserError, match=r"^hidden states of 1 of 3 samples are not numbers; .*fp32[^\n]*$"):
            function(z)


def test_the_eigen_score_worked_by_hand():
    # cov = G / (d - 1) = 2 I / 5 (d = 6), so every singular value is 0.4 + 0.001
    assert seakr.eigen_score(orthogonal(3, 2.0)) == pytest.approx(math.log10(0.401), abs=1e-12)


def test_u_of_fewer_samples_lies_between_the_ends_of_all_as_it_lay_between_its_own():
    ends = [(seakr.floor(2.0, k), seakr.ceiling(2.0)) for k in (5, 20)]
    for share in (0.0, 0.25, 1.0):
        few, many = (low + share * (high - low) for low, high in ends)
        assert seakr.of_k(few, 2.0, 5, 20) == pytest.approx(many, abs=1e-12)
    assert seakr.of_k(-3.0, 2.0, 20, 20) == -3.0


def closed(index, text, mlp, entropy=1.0, surprisal=1.0):
    state, sample = np.asarray(mlp, dtype=np.float32), Sample(index, text, 3, "eos", -1.0)
    return AnswerWithStates(sample, state, state, entropy, surprisal, ((text, 0.5),))


def test_every_signal_rises_with_uncertainty_and_says_its_unit():
    rng = np.random.default_rng(0)
    same, row = [], rng.normal(size=16)
    for i in range(6):
        same.append(closed(i, "Paris", row, 0.1, 0.1))
    different = [closed(i, f"city{i} {i}", rng.normal(size=16), 2.0, 2.0) for i in range(6)]
    low, high = measure(same), measure(different)
    assert list(low) == list(SIGNALS) and len(SIGNALS) == 6
    for name, signal in SIGNALS.items():
        assert low[name] < high[name], name
        assert signal.unit and signal.source


def test_seakr_reads_the_mlp_and_its_two_neighbours_the_residual_stream():
    rng = np.random.default_rng(3)
    one, spread = rng.normal(size=8).astype(np.float32), rng.normal(size=(4, 8)).astype(np.float32)
    sample = closed(0, "Paris", one).sample
    of_mlp = measure([AnswerWithStates(sample, z, one, 1.0, 1.0, ()) for z in spread])
    of_residual = measure([AnswerWithStates(sample, one, z, 1.0, 1.0, ()) for z in spread])
    assert of_mlp["seakr"] > of_residual["seakr"]
    for name in ("seakr_residual", "eigen_score"):
        assert of_mlp[name] < of_residual[name], name


def test_entropy_and_perplexity_are_means_over_the_samples():
    found = measure([closed(0, "a", [1, 2], 1.0, 0.5), closed(1, "b", [2, 1], 3.0, 1.5)])
    assert found["token_entropy"] == pytest.approx(2.0)
    assert found["perplexity"] == pytest.approx(math.e)


def test_empty_samples_are_dropped_and_none_left_is_the_highest_of_every_signal():
    rng = np.random.default_rng(1)
    nothing = rng.normal(size=16)
    different = [closed(i, f"city{i} {i}", rng.normal(size=16), 2.0, 2.0) for i in range(20)]
    for n_left in (0, 1):
        silent = [closed(i, "", nothing, 0.0, 0.0) for i in range(20 - n_left)]
        found = measure([*different[:n_left], *silent])
        assert all(math.isfinite(value) for value in found.values())
        assert all(found[name] > value for name, value in measure(different).items())
    half = [*different[:10], *(closed(i, " ", nothing, 0.0, 0.0) for i in range(10))]
    assert len(nonempty_answers(half)) == 10
    for name in ("token_entropy", "perplexity", "answer_groups"):
        assert measure(half)[name] == measure(different[:10])[name]


def test_u_of_the_samples_that_are_left_stands_on_the_scale_of_all():
    """Ends worked by hand: equal states at the floor of k = 20, orthogonal ones at the ceiling, whatever is left."""
    row = np.array([1.0, -1.0, 0, 0, 0, 0, 0, 0], dtype=np.float64) / math.sqrt(2)
    empty = [closed(i, "", np.zeros(8)) for i in range(15)]
    same = measure([*(closed(i, "Rome", row) for i in range(5)), *empty])
    assert same["seakr"] == pytest.approx(floor(1.0, 20), abs=1e-6)
    apart = [np.roll(row, 2 * i) for i in range(4)]
    unlike = measure([*(closed(i, f"city{i}", z) for i, z in enumerate(apart)), *empty])
    assert unlike["seakr"] == pytest.approx(ceiling(1.0), abs=1e-6)
    # EigenScore: the same of cov = G / 7, in decimal logarithms
    assert same["eigen_score"] == pytest.approx(floor(1 / 7, 20) / math.log(10), abs=1e-6)
    assert unlike["eigen_score"] == pytest.approx(ceiling(1 / 7) / math.log(10), abs=1e-6)
    # before, 19 of 20 empty samples gave nearly the floor, the surest number there is
    assert same["seakr"] < measure([closed(0, "Rome", row), *empty, *empty[:4]])["seakr"]
