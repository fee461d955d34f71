"""Decisions from scores: thresholds from dev, costs, families of tests; values worked by hand."""

from dataclasses import replace

import numpy as np
import pytest

from kbtrain.evaluation.decisions import DevRule, GateInput, correct_families, decide, measure
from kbtrain.evaluation.end_to_end import Settings, _draft_tokens, evaluate
from kbtrain.evaluation.outcomes import answers
from kbtrain.evaluation.results import Comparison
from kbtrain.metrics.significance import Delta, McNemar, interval
from kbtrain.records import Outcome

# retrieval mends the first four, breaks the next two, and makes no difference to the last four
PATTERN = [(0, 1)] * 4 + [(1, 0)] * 2 + [(1, 1)] * 3 + [(0, 0)]
GOOD = np.array([0.95, 0.9, 0.85, 0.8, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6])


def outcomes(split, times=1, expected=None):
    return [
        Outcome(f"{split}{i}", split, None, bool(a), bool(b), expected, expected, 2, 3)
        for i, (a, b) in enumerate(PATTERN * times)
    ]


DEV, TEST = outcomes("dev"), outcomes("test")
SETTINGS = Settings(tau_mastery=0.5, target_ratio=0.4, bootstrap_draws=50)
GATE = GateInput("good", GOOD, GOOD, gate_requests=10)


def test_a_score_at_the_threshold_is_not_searched_for():
    found = decide(replace(GATE, given=0.8), DEV, DevRule("given", 0.5))
    assert found.retrieve.tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    at_zero = decide(replace(GATE, given=0.0), DEV, DevRule("given", 0.5))  # 0 is a threshold too
    assert at_zero.threshold is not None and at_zero.threshold.value == 0.0 and at_zero.retrieve.all()
    by_ratio = decide(GATE, DEV, DevRule("given", 0.3))  # none is given
    assert by_ratio.threshold is not None and by_ratio.threshold.rule == "ratio" and by_ratio.retrieve.sum() == 3


def test_expected_accuracy_chooses_where_dev_was_sampled():
    """Greedy answers say that retrieval never helps here, the samples that it always does."""
    dev = [Outcome(f"d{i}", "dev", None, True, False, 0.0, 1.0, 1, 1) for i in range(4)]
    gate = GateInput("g", GOOD[:4], GOOD[:4])
    assert decide(gate, dev, DevRule("best_accuracy", 0.5, "expected")).retrieve.all()
    assert not decide(gate, dev, DevRule("best_accuracy", 0.5, "greedy")).retrieve.any()


def test_the_oracle_searches_only_where_retrieval_gains():
    oracle = GateInput("oracle", GOOD * 0, GOOD * 0, fixed=0.5)
    found = decide(oracle, DEV, DevRule("ratio", 0.5)).under(answers(TEST, "greedy"))
    assert found.tolist() == [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]


def test_chance_is_a_random_gate_with_as_many_searches():
    known = answers(TEST, "greedy")
    (found,) = measure(known, [decide(GATE, DEV, DevRule("ratio", 0.4))], draws=300, seed=0)
    assert found.point.accuracy == pytest.approx(0.9)
    assert found.point.random_accuracy == pytest.approx(0.5 + 0.4 * 0.2)
    assert found.point.delta_vs_random.mean == pytest.approx(0.9 - 0.58)
    assert found.point.delta_vs_all_rag.mean == pytest.approx(0.2)
    one_cluster = replace(answers(outcomes("test", 9), "greedy"), clusters=("one",) * 90)
    many = replace(GATE, dev=np.tile(GATE.dev, 9), test=np.tile(GATE.test, 9))
    many_decided = decide(many, outcomes("dev", 9), DevRule("ratio", 0.4))
    (whole,) = measure(one_cluster, [many_decided], draws=30, seed=0)
    assert whole.point.delta_vs_random.low == whole.point.delta_vs_random.high  # nothing to draw


def test_an_interval_is_of_the_resamples_without_those_that_are_undefined():
    found = interval(np.array([9.0, 1.0, np.nan, 2.0, 3.0]))
    assert found.mean == 9.0 and 1.0 <= found.low < found.high <= 3.0


def test_each_gate_that_others_are_compared_with_has_a_family_of_its_own():
    same = Delta(0.0, 0.0, 0.0)
    made = [
        Comparison(name, other, same, same, None, mcnemar=McNemar(1, 0, p))
        for name, other, p in (("a", "x", 0.01), ("b", "x", 0.04), ("c", "y", 0.04))
    ]
    adjusted = [found.mcnemar.p_holm for found in correct_families(made) if found.mcnemar]
    assert adjusted == [pytest.approx(0.02), pytest.approx(0.04), pytest.approx(0.04)]


def test_costs_and_tests_of_an_evaluation_worked_by_hand():
    always = GateInput("all_rag", GOOD * 0, GOOD * 0 + 1, fixed=0.5)
    gates = [GATE, replace(GATE, name="bad", dev=-GOOD, test=-GOOD), always]
    settings = Settings(tau_mastery=0.6, target_ratio=0.4, bootstrap_draws=100)
    results, _ = evaluate(outcomes("dev", expected=0.5), outcomes("test", expected=0.5), gates, settings)
    good, bad, always = results
    assert good.cost.generated_tokens == 6 * 2 + 4 * 3 and always.cost.generated_tokens == 30
    assert (good.cost.llm_requests, good.cost.gate_requests, always.cost.llm_requests) == (20, 10, 10)
    assert good.unmastered.n_positive == 10  # every mastery is .5, known is above .6
    assert good.beats_random and not bad.beats_random and always.p_vs_random_holm is None
    assert good.p_vs_random is not None and good.p_vs_random_holm == pytest.approx(2 * good.p_vs_random)


def test_a_draft_that_the_answer_goes_on_from_is_billed_where_a_search_follows():
    """Ten answers of 2 tokens, drafts of them whole; four questions are searched for."""
    draft = replace(GATE, gate_tokens=20, gate_seconds=5.0, within_answer=True)
    (own,), _ = evaluate(DEV, TEST, [replace(draft, within_answer=False)], SETTINGS)
    (within,), _ = evaluate(DEV, TEST, [draft], SETTINGS)
    assert (own.cost.gate_tokens, own.cost.gate_requests, own.cost.gate_seconds) == (20, 10, 5.0)
    assert (within.cost.gate_tokens, within.cost.gate_requests, within.cost.gate_seconds) == (8, 4, 2.0)
    assert (own.cost.llm_requests, within.cost.llm_requests) == (20, 14)
    # answers of 4, 10 and 30 tokens with drafts of 16 at most: 4 + 10 + 16
    assert _draft_tokens(np.array([4.0, 10.0, 30.0]), 30).tolist() == [4.0, 10.0, 16.0]
    assert _draft_tokens(np.array([4.0, 4.0]), 7).tolist() == [3.5, 3.5]  # drafts in fp32 may end elsewhere


def test_a_gain_that_may_be_chance_is_called_none():
    """Two of ten searches, one of which mends: above chance, but not for certain."""
    gate = GateInput("weak", np.arange(10)[::-1] / 10, np.array([9, 0, 1, 2, 3, 4, 8, 5, 6, 7]) / 10)
    settings = Settings(tau_mastery=0.5, target_ratio=0.2, bootstrap_draws=300)
    (found,), _ = evaluate(DEV, TEST, [gate], settings)
    assert found.delta_vs_random.mean > 0 and not found.beats_random
