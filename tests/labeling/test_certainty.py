"""Certainty by hand, and the coverage of its interval."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from scipy.stats import entropy

from kbtrain.labeling.certainty import certainty, certainty_interval


def test_certainty_by_hand() -> None:
    assert certainty((30,)) == 1.0
    assert certainty((1,) * 30) == pytest.approx(0.0, abs=1e-12)
    assert certainty((1, 1)) == pytest.approx(0.0, abs=1e-12)
    # two halves: U = ln 2
    assert certainty((15, 15)) == pytest.approx(1 - math.log(2) / math.log(30), abs=1e-12)
    # 2/3 and 1/3: U = ln 3 - 2/3 ln 2
    assert certainty((20, 10)) == pytest.approx(1 - (math.log(3) - 2 / 3 * math.log(2)) / math.log(30), abs=1e-12)


def test_answers_that_are_all_the_same_have_a_certainty_of_exactly_one() -> None:
    assert {certainty((n,)) for n in range(2, 1000)} == {1.0}


def test_certainty_equals_scipys_entropy_for_any_grouping() -> None:
    rng = np.random.default_rng(1)
    for n in (2, 7, 30, 100):
        for _ in range(50):
            sizes = rng.multinomial(n, rng.dirichlet(np.full(6, 0.5)))
            groups = tuple(int(size) for size in sizes if size)
            assert certainty(groups) == pytest.approx(1 - entropy(groups) / math.log(n), abs=1e-12)


def test_certainty_is_within_zero_and_one_and_ignores_the_order_of_groups() -> None:
    assert certainty((3, 7, 20)) == certainty((20, 3, 7))
    assert certainty_interval((3, 7, 20)) == certainty_interval((20, 3, 7))


@pytest.mark.parametrize("groups", [(), (1,), (3, 0)])
def test_one_answer_has_no_certainty(groups: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"two answers|empty"):
        certainty(groups)


@pytest.mark.parametrize("groups", [(30,), (1,) * 30, (29, 1), (15, 15), (10, 5, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)])
def test_the_interval_holds_the_value_is_repeatable_and_leaves_doubt(groups: tuple[int, ...]) -> None:
    low, high = certainty_interval(groups)
    assert 0 <= low <= certainty(groups) <= high <= 1
    assert high - low > 0.02
    certainty_interval.cache_clear()
    assert certainty_interval(groups) == (low, high)


SHARES = {
    "certain": [0.98, 0.02],
    "three": [0.7, 0.2, 0.1],
    "ten alike": [0.1] * 10,
    "long tail": list(1 / np.arange(1, 101)),
}


@pytest.mark.parametrize("name", SHARES)
def test_the_interval_covers_the_expected_certainty_where_percentiles_fail(name: str) -> None:
    """Answers drawn from known shares: four in five intervals hold the mean certainty of 30 such answers."""
    shares = np.array(SHARES[name]) / sum(SHARES[name])
    rng = np.random.default_rng(3)
    draws = [tuple(int(c) for c in counts if c) for counts in rng.multinomial(30, shares, size=3000)]
    expected = np.mean([certainty(groups) for groups in draws])
    seen = [certainty_interval(tuple(sorted(groups, reverse=True))) for groups in draws[:150]]
    assert np.mean([low <= expected <= high for low, high in seen]) >= 0.8


def test_a_thousand_questions_take_seconds() -> None:
    rng = np.random.default_rng(5)
    shares = rng.dirichlet(np.full(12, 0.3), size=3000)
    certainty_interval.cache_clear()
    start = time.process_time()
    for counts in rng.multinomial(30, shares):
        certainty_interval(tuple(sorted((int(c) for c in counts if c), reverse=True)))
    assert time.process_time() - start < 10
