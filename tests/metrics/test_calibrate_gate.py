"""Calibration: each goal on questions worked by hand, evidence, and shifted scores."""

from types import SimpleNamespace

import numpy as np
import pytest

from kbtrain.errors import UserError
from kbtrain.evaluation.calibrate import calibrate
from kbtrain.evaluation.decisions import DevRule
from kbtrain.metrics.calibration import KEPT, kept_scores, shift
from kbtrain.metrics.thresholds import Dev
from kbtrain.serve.decide import LoadedGate


def dev(n=200, seed=0):
    """High scores need retrieval: the LLM is right on the lower half, RAG on all but a tenth."""
    rng = np.random.default_rng(seed)
    scores = np.arange(n, dtype=float)
    llm = (scores < n / 2).astype(float)
    rag = (rng.random(n) > 0.1).astype(float)
    return Dev(scores, llm, rag, (rag > llm).astype(float))


def test_a_ratio_is_met_and_the_evidence_is_what_it_says():
    found = calibrate(dev(), DevRule("ratio", 0.25))
    e = found.evidence
    assert found.threshold == 149.5 and found.rule == "ratio 0.25" and e["guarantee"] is None
    assert e["retrieval_ratio"] == 0.25 and e["n_dev"] == 200 and e["llm_only"] == 0.5
    table = dev()
    assert e["accuracy"] == pytest.approx(np.where(table.scores > 149.5, table.rag, table.llm).mean())
    assert e["random_at_that_ratio"] == pytest.approx(0.75 * 0.5 + 0.25 * table.rag.mean())
    assert e["all_rag"] == pytest.approx(table.rag.mean())
    assert "25.0% searched" in found.line()


def test_the_best_accuracy_retrieves_for_the_half_that_needs_it(monkeypatch):
    monkeypatch.setattr("kbtrain.metrics.thresholds.MARGIN", 1.0)  # 200 questions
    found = calibrate(dev(), DevRule("best_accuracy"))
    assert 99 <= found.threshold < 102 and found.evidence["accuracy"] > 0.9


def test_a_promise_comes_with_its_guarantee():
    found = calibrate(dev(1000), DevRule("max_loss", max_loss=0.05, delta=0.1))
    kept = found.evidence["guarantee"]
    assert kept["bound"] <= 0.05 and kept["promise"] == "accuracy_lost" and kept["n"] == 1000
    e = found.evidence
    assert e["all_rag"] - e["accuracy"] <= 0.05 and e["retrieval_ratio"] < 1
    assert found.rule == "max_loss 0.05 with probability 0.9"
    assert "promised: at most 5 points of right answers lost against always searching" in found.line()
    with pytest.raises(UserError, match="too few to promise"):
        calibrate(dev(20), DevRule("max_loss", max_loss=0.05))


def test_without_dev_questions_nothing_is_chosen():
    empty = Dev(*(np.zeros(0) for _ in range(4)))
    with pytest.raises(UserError, match="no dev question"):
        calibrate(empty, DevRule("ratio"))


def test_the_ks_statistic_worked_by_hand():
    # F(dev) jumps at 1, 2, 3, 4; F(new) at 3, 4, 5, 6: the gap before 3 is 1/2
    found = shift([1, 2, 3, 4], [3, 4, 5, 6])
    assert found.statistic == pytest.approx(0.5) and not found.alarming and (found.n_dev, found.n_new) == (4, 4)


def test_shifted_scores_are_warned_about_and_others_not():
    rng = np.random.default_rng(0)
    before, same, moved = rng.normal(size=400), rng.normal(size=500), rng.normal(0.5, size=500)
    assert shift(before, moved).line("seakr").startswith("warning: scores of 'seakr' on 500 new questions")
    assert shift(before, same).line("seakr").startswith("seakr: 500 new scores are distributed as on dev")
    with pytest.raises(ValueError):
        shift([], [1.0])


def test_dev_questions_about_few_entities_are_few_observations():
    """150 dev questions about 50 entities, new ones from the same population: nominally one alarm in a hundred."""
    rng, alarms = np.random.default_rng(0), []
    for _ in range(150):
        dev = 0.9 * np.repeat(rng.normal(size=50), 3) + 0.436 * rng.normal(size=150)
        new = rng.normal(size=500)
        alarms.append((shift(dev, new).alarming, shift(dev, new, (50, None)).alarming))
    alone, by_entity = np.mean(alarms, axis=0)
    assert by_entity <= 0.02 < 0.04 < alone
    assert shift(dev, new + 1, (50, None)).alarming  # what has shifted is seen still
    assert shift(dev, new, (150, 900)).p_value == shift(dev, new).p_value  # never more than the scores


def test_kept_scores_keep_their_distribution():
    scores = np.random.default_rng(0).normal(size=10_000)
    kept = kept_scores(scores)
    assert len(kept) == KEPT and kept == sorted(kept)
    assert shift(scores, kept).statistic < 0.001
    assert kept_scores(np.array([2.0, 1.0])) == [1.0, 2.0]


def test_a_threshold_at_a_budget_parts_no_tie():
    shares = np.array([0, 1, 2, 3] * 50) / 3
    about = {"unit": "probability", "name": "shares", "card": None, "needs_evidence": False, "stage": "question"}
    gate = LoadedGate(SimpleNamespace(**about, threshold=None, noted_threshold=None), "")
    gate.dev_scores = kept_scores(shares)
    for budget, searched in ((0.25, 0.25), (0.5, 0.5), (0.6, 0.5)):
        assert np.mean(shares > gate.at_budget(budget)) == searched
