"""Two evaluations side by side: questions of one entity are right and wrong together, and are drawn together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kbtrain.evaluation.compare_runs import FinishedEvaluation, compare_runs
from kbtrain.records import Outcome

N, PER_ENTITY = 400, 20


def finished(name: str, right: np.ndarray, entities: bool) -> FinishedEvaluation:
    """A run in which a gate never searches; ``right``: without a search, a number of 0 or 1 a question."""
    outcomes = [Outcome(f"q{i}", "test", None, bool(one), True, None, None, 1, 1) for i, one in enumerate(right)]
    found = {f"q{i}": f"entity {i // PER_ENTITY}" for i in range(N)} if entities else {}
    gate: Any = SimpleNamespace(gate="llm_only")  # all that is asked of a result that needs no scores
    return FinishedEvaluation(name, outcomes, [gate], {}, found)


@pytest.mark.parametrize(("first", "second", "wide"), [(True, True, True), (True, False, False), (False, False, False)])
def test_intervals_draw_entities_where_both_evaluations_do(first, second, wide):
    draw = np.random.default_rng(0)
    before = draw.integers(0, 2, N)
    after = np.repeat(draw.integers(0, 2, N // PER_ENTITY), PER_ENTITY)  # all questions of an entity alike
    runs = (finished("a", before, first), finished("b", after, second))
    (found,) = compare_runs(*runs, draws=2_000)
    width = found.accuracy.high - found.accuracy.low
    alone = 2 * 1.96 * float((after - before).std()) / N**0.5
    assert (width > 1.5 * alone) == wide and width > 0.9 * alone
