"""Seeds as a second source of variance."""

from __future__ import annotations

import numpy as np
import pytest

from kbtrain.metrics.turns import summarise_seeds


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


def test_one_seed_has_no_spread() -> None:
    assert summarise_seeds([np.ones(5)], draws=10).spread is None
