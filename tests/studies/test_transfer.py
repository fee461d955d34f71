"""Thresholds carried over."""

from __future__ import annotations

import numpy as np
import pytest
from carried_thresholds import CarriedThreshold, TransferSet, carry_threshold, transfer_matrix

from kbtrain.evaluation.outcomes import Correctness
from kbtrain.metrics.thresholds import Dev, Rule


def part(name: str, seed: int, offset: float = 0.0, n_dev: int = 300) -> TransferSet:
    """Questions whose scores tell which of them retrieval mends; ``offset`` moves all scores."""
    rng = np.random.default_rng(seed)
    scores = rng.random(n_dev + 300)
    llm = (rng.random(len(scores)) > scores).astype(float)
    rag = np.maximum(llm, (rng.random(len(scores)) < 0.7).astype(float))
    scores += offset
    dev, test = slice(0, n_dev), slice(n_dev, None)
    table = Dev(scores[dev], llm[dev], rag[dev], (rag > llm)[dev].astype(float))
    return TransferSet(name, {"gate": table}, {"gate": scores[test]}, Correctness("greedy", llm[test], rag[test]))


def carried(source: TransferSet, target: TransferSet, rule: Rule, ratio: float = 0.5) -> CarriedThreshold:
    of_target = (target.name, target.scores["gate"], target.answers)
    return carry_threshold("gate", (source.name, source.dev["gate"]), of_target, rule, ratio)


def test_a_threshold_holds_where_the_scores_are_alike() -> None:
    found = carried(part("a", 0), part("b", 1), "ratio", 0.4)
    assert found.ratio == pytest.approx(0.4, abs=0.12)  # two samples of 300: 3 standard errors
    assert carried(part("a", 0), part("b", 1), "ratio", 0.1).ratio == pytest.approx(0.1, abs=0.08)
    assert found.gain.above_zero
    assert not found.shift.alarming


def test_a_shift_is_found_before_it_does_harm() -> None:
    found = carried(part("a", 0), part("b", 1, offset=0.5), "ratio", 0.4)
    assert found.ratio > 0.8
    assert found.shift.alarming
    assert found.shift.statistic == pytest.approx(0.5, abs=0.08)


def test_the_figures_are_those_of_the_targets_own_decisions() -> None:
    source, target = part("a", 0), part("b", 1)
    found = carried(source, target, "best_accuracy")
    retrieve = target.scores["gate"] > found.threshold
    assert found.accuracy == pytest.approx(np.where(retrieve, target.answers.rag, target.answers.llm).mean())
    assert (found.n_dev, found.n) == (300, 300)


def test_the_matrix_has_every_pair_and_names_the_parts_without_dev() -> None:
    found, without = transfer_matrix(["gate"], [part("a", 0), part("b", 1), part("c", 2, n_dev=0)], "ratio")
    assert [(c.source, c.target) for c in found] == [(s, t) for s in "ab" for t in "abc"]
    assert without == ["c"]
