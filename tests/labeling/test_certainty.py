"""Certainty by hand, and the coverage of its interval."""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter

import numpy as np
import pytest
from scipy.stats import entropy

from kbtrain.labeling.indicators import DRAWS, certainty, certainty_interval


def test_certainty_by_hand() -> None:
    assert certainty((30,)) == 1.0
    assert certainty((1,) * 30) == pytest.approx(0.0, abs=1e-12)
    assert certainty((1, 1)) == pytest.approx(0.0, abs=1e-12)
    # two halves: U = ln 2
    assert certainty((15, 15)) == pytest.approx(1 - math.log(2) / math.log(30), abs=1e-12)
    # 2/3 and 1/3: U = ln 3 - 2/3 ln 2
    assert certainty((20, 10)) == pytest.approx(1 - (math.log(3) - 2 / 3 * math.log(2)) / math.log(30), abs=1e-12)


@pytest.mark.parametrize(("groups", "drawn"), [((3, 2), 2), ((3, 2, 1, 1), 4), ((4, 4), 7), ((1,) * 6, 3), ((6, 2), 5)])
def test_on_a_smaller_scale_certainty_is_the_mean_over_all_ways_to_draw_so_many(
    groups: tuple[int, ...], drawn: int
) -> None:
    answers = [group for group, size in enumerate(groups) for _ in range(size)]
    every = [certainty(tuple(Counter(part).values())) for part in itertools.combinations(answers, drawn)]
    assert certainty(groups, drawn) == pytest.approx(np.mean(every), abs=1e-12)
    low, high = certainty_interval(groups, drawn)
    assert 0 <= low <= certainty(groups, drawn) <= high <= 1


def test_the_scale_of_all_answers_is_the_papers_value() -> None:
    for groups in ((30,), (15, 15), (20, 9, 1), (1,) * 30):
        assert certainty(groups, 30) == certainty(groups)
        assert certainty_interval(groups, 30) == certainty_interval(groups)


def test_the_papers_value_grows_with_the_number_of_answers_and_the_common_scale_does_not() -> None:
    """Two thirds of the answers are one, a third another: 5, 10 and 30 answers, each drawn 4,000 times."""
    rng = np.random.default_rng(7)
    paper, common = {}, {}
    for n in (6, 12, 30):
        drawn = [tuple(int(c) for c in counts if c) for counts in rng.multinomial(n, [2 / 3, 1 / 3], size=4000)]
        paper[n] = np.mean([certainty(groups) for groups in drawn])
        common[n] = np.mean([certainty(groups, 6) for groups in drawn])
    assert paper[30] - paper[6] > 0.1
    assert max(common.values()) - min(common.values()) < 0.01


def test_fewer_answers_than_the_scale_have_no_certainty_on_it() -> None:
    with pytest.raises(ValueError, match="not 10 of"):
        certainty((4, 1), 10)


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
    """By what decides it, not by a clock: each grouping is computed once, and no Python runs for each resample."""
    rng = np.random.default_rng(5)
    shares = rng.dirichlet(np.full(12, 0.3), size=3000)
    drawn = [tuple(sorted((int(c) for c in counts if c), reverse=True)) for counts in rng.multinomial(30, shares)]
    certainty_interval.cache_clear()
    called: Counter[str] = Counter()
    sys.setprofile(lambda frame, event, _: called.update([event]))
    for groups in drawn:
        certainty_interval(groups)
    sys.setprofile(None)
    computed = certainty_interval.cache_info().misses
    assert computed == len(set(drawn)) < 0.9 * len(drawn)
    assert (called["call"] + called["c_call"]) / computed < 200 < DRAWS
