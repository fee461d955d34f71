"""U, its floor and its ceiling: values worked by hand, and a second implementation by eigenvalues."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbtrain.errors import UserError
from kbtrain.gates.seakr import uncertainty as seakr


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


def test_identical_states_of_any_length_give_the_floor():
    rng = np.random.default_rng(0)
    row = rng.normal(size=64) * 3
    centred = row - row.mean()
    found = seakr.uncertainty(np.tile(row, (20, 1)))
    assert found == pytest.approx(seakr.floor(float(centred @ centred), 20), abs=1e-9)


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


def test_the_order_of_the_samples_does_not_matter():
    rng = np.random.default_rng(1)
    z = rng.normal(size=(20, 32))
    assert seakr.uncertainty(z[rng.permutation(20)]) == pytest.approx(seakr.uncertainty(z), abs=1e-12)


def test_huge_states_whose_determinant_rounds_to_nothing_still_give_their_floor():
    row = np.linspace(-1e6, 1e6, 64)
    assert seakr.uncertainty(np.tile(row, (20, 1))) == pytest.approx(seakr.floor(float(row @ row), 20), abs=0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_state_that_is_no_number_is_one_line(bad):
    z = np.ones((3, 4))
    z[1, 2] = bad
    for function in (seakr.uncertainty, seakr.eigen_score, seakr.state_variance):
        with pytest.raises(UserError, match=r"^hidden states of 1 of 3 samples are not numbers; .*fp32[^\n]*$"):
            function(z)


def test_the_eigen_score_worked_by_hand():
    # cov = G / (d - 1) = 2 I / 5 (d = 6), so every singular value is 0.4 + 0.001
    assert seakr.eigen_score(orthogonal(3, 2.0)) == pytest.approx(math.log10(0.401), abs=1e-12)


def test_the_variance_worked_by_hand():
    # features (0, 2) and (3, 3) over two samples: variances 1 and 0
    assert seakr.state_variance([[0, 3], [2, 3]]) == pytest.approx(0.5)


def test_a_scale_knows_its_ends_and_refuses_what_lies_under_them():
    scale = seakr.Scale.from_norms([1.0, 4.0, 2.0], k=20)
    assert scale.floor == seakr.floor(1.0, 20) and scale.ceiling == seakr.ceiling(4.0)
    scale.check(-6.0)
    with pytest.raises(UserError, match=r"threshold -7 is under the floor -6\.413 .* Even identical answers"):
        scale.check(-7.0)


def test_u_of_fewer_samples_lies_between_the_ends_of_all_as_it_lay_between_its_own():
    ends = [(seakr.floor(2.0, k), seakr.ceiling(2.0)) for k in (5, 20)]
    for share in (0.0, 0.25, 1.0):
        few, many = (low + share * (high - low) for low, high in ends)
        assert seakr.of_k(few, 2.0, 5, 20) == pytest.approx(many, abs=1e-12)
    assert seakr.of_k(-3.0, 2.0, 20, 20) == -3.0
