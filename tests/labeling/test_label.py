"""From stored samples to a label, worked by hand."""

import dataclasses
import math

import pytest

from kbtrain.labeling.examples import example
from kbtrain.labeling.indicators import certainty
from kbtrain.labeling.label import LabelRule, benefit, indicators, label, with_taus
from kbtrain.metrics.significance import newcombe, wilson
from kbtrain.records import Indicators


def test_indicators_by_hand(capital, answered):
    found, graded = indicators(capital, answered("Paris", "paris", "Rome", "", greedy="Paris!"))
    assert (found.condition, found.n, found.n_correct, found.mastery) == ("llm", 4, 2, 0.5)
    assert (found.mastery_low, found.mastery_high) == wilson(2, 4)
    # shares 1/2, 1/4, 1/4: U = 1.5 ln 2; ln 4 = 2 ln 2
    assert found.certainty == pytest.approx(0.25)
    assert found.certainty_low <= 0.25 <= found.certainty_high
    assert (found.n_groups, found.n_empty, found.greedy_correct) == (3, 1, True)
    assert graded.groups == (2, 1, 1)


def test_empty_answers_do_not_agree_with_one_another(capital, answered):
    silent, _ = indicators(capital, answered(*[""] * 30))
    assert (silent.certainty, silent.certainty_low, silent.n_empty, silent.mastery) == (None, None, 30, 0.0)
    half, _ = indicators(capital, answered(*["", "Paris"] * 15))
    most, _ = indicators(capital, answered(*[" ", "Paris"] * 14, "", "\n"))
    # 15 alike and 15 groups of one: U = 0.5 ln 2 + 0.5 ln 30; as one group the empty ones gave 0.80
    assert half.certainty == pytest.approx(0.5 * (1 - math.log(2) / math.log(30)), abs=1e-12)
    assert most.certainty is None
    dots, _ = indicators(capital, answered(*["..."] * 30))  # nothing is left of them: before, their certainty was 1.0
    assert (dots.certainty, dots.n_empty, dots.mastery) == (None, 30, 0.0)
    kinds, _ = indicators(capital, answered(*["", "...", "-", "Paris"] * 2))
    assert (kinds.n_groups, kinds.n_empty) == (7, 6)
    made = label(capital, {"llm": silent, "rag": half}, 0.5, 0.5)
    assert (made.certain, made.effect_certainty, made.effect_mastery) == (None, None, "beneficial")


def test_without_gold_answers_there_is_certainty_and_no_mastery(capital, answered):
    impossible = dataclasses.replace(capital, answers=(), gold="none")
    llm, graded = indicators(impossible, answered("Paris", "Paris", "Rome", "Rome", greedy="Paris"))
    assert (llm.mastery, llm.mastery_low, llm.mastery_high, llm.n_correct, llm.n_abstained) == (None, None, None, 0, 0)
    assert (llm.certainty, llm.greedy_correct, graded.mastery) == (pytest.approx(0.5), None, None)
    rag, _ = indicators(impossible, answered(*["Rome"] * 4, condition="rag"), verdicts={})
    made = label(impossible, {"llm": llm, "rag": rag}, 0.2, 0.8)
    assert (made.known, made.known_rag, made.benefit, made.benefit_low, made.effect_mastery) == (None,) * 5
    assert (made.certain, made.certain_rag, made.effect_certainty) == (False, True, "beneficial")
    taught = example(impossible, made)
    assert (taught.mastery, taught.soft_mastery, taught.benefit, taught.soft_benefit) == (None,) * 4
    assert (taught.certainty, taught.soft_certainty) == (False, pytest.approx(0.5))


def test_answers_cut_at_the_token_limit_stand_or_are_dropped(capital, answered):
    texts = ["Paris. Its river is the", "Rome, I", "Rome", "It was Rome. Now it is Paris"]  # the last one is whole
    made = answered(*texts)
    finishes = ("length", "length", "eos", "stop")
    samples = (dataclasses.replace(s, finish=f) for s, f in zip(made.samples, finishes, strict=True))
    made = dataclasses.replace(made, samples=tuple(samples))
    found = {cut: indicators(capital, made, rule=LabelRule(cut=cut))[0] for cut in ("keep", "drop")}
    counts = {cut: (f.n, f.n_correct, f.n_groups) for cut, f in found.items()}
    assert counts == {"keep": (4, 2, 4), "drop": (2, 1, 2)}
    few = dataclasses.replace(made, samples=made.samples[:3])
    assert indicators(capital, few, rule=LabelRule(cut="drop"))[0] is None


def test_certainty_stands_on_the_rule_s_scale_and_fewer_answers_have_none(capital, answered):
    made = answered("Paris", "Paris", "Rome", "Lyon")
    for scale, value in ((None, certainty((2, 1, 1))), (2, certainty((2, 1, 1), 2)), (5, None)):
        found = indicators(capital, made, rule=LabelRule(certainty_answers=scale))[0]
        assert found is not None and found.certainty == value and found.mastery == 0.5
        assert (found.certainty_low is None) == (value is None)


def test_the_greedy_answer_alone_is_right_or_wrong_and_says_nothing_of_certainty(capital, answered):
    one = answered(*["Rome"] * 4, greedy="It is Paris.")
    found, graded = indicators(capital, one, rule=LabelRule("greedy"))
    assert (found.n, found.n_correct, found.mastery, found.greedy_correct) == (1, 1, 1.0, True)
    assert (found.mastery_low, found.mastery_high) == wilson(1, 1)
    assert (found.certainty, found.certainty_low, found.certainty_high, graded.n) == (None, None, None, 1)
    rag = indicators(capital, answered(greedy="Rome"), rule=LabelRule("greedy"))[0]
    made = label(capital, {"llm": found, "rag": rag}, 0.8, 0.8)
    assert (made.known, made.known_rag, made.benefit, made.effect_mastery) == (True, False, -1.0, "harmful")
    assert (made.certain, made.certain_rag, made.effect_certainty) == (None, None, None)
    assert indicators(capital, answered("Paris"))[0] is None


def test_hard_labels_are_strictly_above_tau(capital, answered):
    llm, _ = indicators(capital, answered(*["Paris"] * 4, "Rome"))
    made = label(capital, {"llm": llm}, tau_mastery=0.8, tau_certainty=0.0)
    assert made.llm.mastery == 0.8 and not made.known and made.certain
    assert with_taus(made, math.nextafter(0.8, 0), 0.99).known
    assert not with_taus(made, 0.8, 0.99).certain


def test_a_certainty_that_equals_tau_is_not_above_it_by_a_rounding(capital, answered):
    """6^6 * 2^12 = 4^8 * 3^6 * 2^2 (2^18 * 3^6), so both groupings of 20 answers have the same entropy."""
    groupings = (4, 4, 3, 3, 2, 1, 1, 1, 1), (6, 2, 2, 2, 2, 2, 2, 1, 1)
    texts = ([f"x{i}" for i, size in enumerate(sizes) for _ in range(size)] for sizes in groupings)
    one, other = (indicators(capital, answered(*of))[0] for of in texts)
    assert one is not None and other is not None and one.certainty is not None and other.certainty is not None
    assert one.certainty < other.certainty == pytest.approx(one.certainty, abs=1e-12)
    made = label(capital, {"llm": other, "rag": other}, 0.0, tau_certainty=one.certainty)
    assert (made.certain, made.certain_rag) == (False, False)
    assert with_taus(made, 0.0, one.certainty - 1e-6).certain


def test_a_label_with_all_conditions(capital, answered):
    found = {
        "llm": indicators(capital, answered(*["Rome", "Lyon", "Nice", "Paris"]))[0],
        "rag": indicators(capital, answered(*["Paris"] * 4, condition="rag"))[0],
        "mask": indicators(capital, answered(*["MASK"] * 4, condition="mask"))[0],
    }
    made = label(capital, found, 0.5, 0.5)
    assert (made.known, made.certain, made.known_rag, made.certain_rag) == (False, False, True, True)
    assert made.benefit == 0.75 and made.benefit_low is not None and made.benefit_high is not None
    assert made.benefit_low < 0.75 < made.benefit_high <= 1
    assert (made.effect_mastery, made.effect_certainty) == ("beneficial", "beneficial")
    assert made.mask is not None and (made.mask.mastery, made.mask.certainty) == (0.0, 1.0)
    assert (made.split, made.relation, made.tau_mastery) == ("train", "capital", 0.5)


def test_the_interval_of_a_benefit_leaves_out_what_the_judge_would_not_say():
    def of(condition, n, right, abstained):
        mastery = right / (n - abstained)
        return Indicators(
            condition=condition, n=n, n_correct=right, mastery=mastery, mastery_low=0.0, mastery_high=1.0,
            certainty=None, certainty_low=None, certainty_high=None, n_groups=2, n_empty=0, greedy_correct=None,
            n_abstained=abstained,
        )  # fmt: skip

    assert benefit(of("llm", 30, 4, 10), of("rag", 30, 12, 6)) == (0.5 - 0.2, newcombe((4, 20), (12, 24)))
