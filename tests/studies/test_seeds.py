"""Seeds as a second source of variance."""

from __future__ import annotations

import numpy as np
import pytest
from seeds import gain_over_random, summarise_seeds


def test_seeds_that_agree_add_no_variance() -> None:
    column = (np.random.default_rng(0).random(200) < 0.4).astype(float)
    found = summarise_seeds([column, column, column], draws=2000)
    assert found.spread == pytest.approx(0)
    assert found.both.low == pytest.approx(found.questions.low) and found.both.high == pytest.approx(
        found.questions.high
    )
    assert found.mean == pytest.approx(column.mean())


def test_seeds_that_differ_widen_the_interval_by_their_spread() -> None:
    rng = np.random.default_rng(0)
    seeds = [(rng.random(2000) < p).astype(float) for p in (0.3, 0.4, 0.5)]
    found = summarise_seeds(seeds, draws=4000)
    assert found.by_seed == [s.mean() for s in seeds]
    assert found.spread == pytest.approx(np.std([s.mean() for s in seeds], ddof=1))
    assert found.both.high - found.both.low > 3 * (found.questions.high - found.questions.low)
    # the mean of 3 seeds drawn from 3: standard error = population sd / sqrt(3)
    sd = (found.both.high - found.both.low) / (2 * 1.96)
    assert sd == pytest.approx(np.std(found.by_seed) / 3**0.5, rel=0.25)


def table(rng: np.random.Generator, n: int, ratio: float) -> np.ndarray:
    """(correct, llm, rag, retrieved) of a gate that retrieves by lot."""
    llm, rag = rng.random(n) < 0.3, rng.random(n) < 0.6
    retrieve = rng.random(n) < ratio
    return np.column_stack([np.where(retrieve, rag, llm), llm, rag, retrieve]).astype(float)


def test_a_gain_that_is_always_zero_has_no_width() -> None:
    rng = np.random.default_rng(0)
    for ratio in (0.0, 1.0):
        found = summarise_seeds([table(rng, 300, ratio) for _ in range(3)], draws=1000, figure=gain_over_random)
        assert (found.mean, found.questions.low, found.questions.high) == pytest.approx((0, 0, 0), abs=1e-12)


def test_the_interval_of_the_gain_holds_the_truth_19_times_in_20() -> None:
    """A gate by lot gains 0 in truth; 400 evaluations of 300 questions."""
    rng = np.random.default_rng(1)
    found = [summarise_seeds([table(rng, 300, 0.5)], draws=400, figure=gain_over_random) for _ in range(400)]
    covered = np.mean([one.questions.low <= 0 <= one.questions.high for one in found])
    assert 0.915 <= covered <= 0.975


def test_one_seed_has_no_spread() -> None:
    assert summarise_seeds([np.ones(5)], draws=10).spread is None
