"""Examples of gates and their targets, benefit's among them."""

import dataclasses
from dataclasses import replace

import pytest

from kbtrain.errors import UserError
from kbtrain.labeling.examples import PLAIN, BenefitTarget, Targets, example, reference_example
from kbtrain.labeling.label import indicators, label
from kbtrain.prompts.kbm import DEFAULT_KEYS, PAPER_KEYS, query_text


@pytest.fixture
def labelled(capital, answered):
    llm = indicators(capital, answered("Paris", "Rome", "Oslo", "Lyon"))[0]
    rag = indicators(capital, answered("Paris", "Paris", "Paris", "Lyon", condition="rag"))[0]
    return label(capital, {"llm": llm, "rag": rag}, 0.5, 0.3)


def test_the_plain_example_carries_llm_targets_and_half_of_one_plus_benefit(capital, labelled):
    made = example(capital, labelled)
    assert (made.id, made.question_id, made.split, made.reference) == ("q1", "q1", "train", None)
    assert (made.mastery, made.certainty, made.benefit) == (False, False, True)
    assert (made.soft_mastery, made.soft_certainty) == (0.25, labelled.llm.certainty)
    assert made.soft_benefit == (1 + 0.5) / 2
    assert example(capital, labelled, BenefitTarget(tau=0.5)).benefit is False


def test_the_reference_example_carries_rag_targets_and_no_benefit(capital, labelled):
    made = reference_example(capital, labelled, "Paris is in France.")
    assert (made.id, made.question_id, made.reference) == ("q1#reference", "q1", "Paris is in France.")
    assert labelled.rag is not None
    assert (made.mastery, made.soft_mastery, made.soft_certainty) == (True, 0.75, labelled.rag.certainty)
    assert (labelled.certain, made.certainty) == (False, True)
    assert (made.benefit, made.soft_benefit) == (None, None)


def test_without_a_label_there_are_no_targets(choice):
    for made in (example(choice, None), reference_example(choice, None, "text")):
        names = ("mastery", "certainty", "benefit")
        assert {getattr(made, soft + name) for name in names for soft in ("", "soft_")} == {None}
        assert made.question == query_text(choice) == "Where is Kenya?\nA. Asia\nB. Africa\nC. Europe"


def test_facts_about_the_question_need_no_label_and_unknown_words_say_nothing(capital):
    kinds = {"fast-changing": True, "slow-changing": True, "never-changing": False, "sometimes": None, None: None}
    made = {kind: example(replace(capital, fact_type=kind), None) for kind in kinds}
    assert {kind: one.time_sensitive for kind, one in made.items()} == kinds


def test_targets_count_classes_and_leave_out_what_is_incomplete(capital, labelled):
    targets = Targets(DEFAULT_KEYS)
    assert targets.complete(example(capital, labelled))
    assert not targets.complete(reference_example(capital, labelled, "x"))
    assert targets.as_dict() == {"mastery": {"False": 1}, "certainty": {"False": 1}, "benefit": {"True": 1}}


def test_without_gold_answers_certainty_alone_is_asked_for(capital, labelled):
    made = example(capital, replace(labelled, known=None, benefit=None))
    assert made.mastery is None and made.certainty is False
    targets = Targets(DEFAULT_KEYS)
    assert not targets.complete(made) and targets.complete(made, gold=False)
    assert targets.as_dict() == {"certainty": {"False": 1}} and targets.seen == 2


def test_one_class_only_is_one_line_naming_the_target(capital, labelled):
    targets = Targets(PAPER_KEYS)
    targets.complete(example(capital, labelled))
    alike = r"^target 'certainty': all 1 training examples are False; change tau_certainty"
    with pytest.raises(UserError, match=alike):
        targets.check()
    unlabelled = Targets(PAPER_KEYS)
    unlabelled.check()  # no training question at all: a run to be scored
    assert not unlabelled.complete(example(capital, None))
    with pytest.raises(UserError, match=r"^no training question has labels for mastery, certainty;"):
        unlabelled.check()


@pytest.fixture
def made(capital, answered):
    def labelled(benefit, split="train"):
        llm = indicators(capital, answered("Paris", "Rome"))[0]
        return dataclasses.replace(label(capital, {"llm": llm}, 0.5, 0.5), benefit=benefit, split=split)

    return labelled


def test_a_benefit_that_equals_tau_is_not_above_it_by_a_rounding():
    """One answer of ten more, wherever on the scale: .4 - .3 is a little more than .1 in floats, .2 - .1 not."""
    target = BenefitTarget(0.1)
    assert 0.4 - 0.3 > 0.1 >= 0.2 - 0.1
    assert not any(target.hard((right + 1) / 10 - right / 10) for right in range(10))
    assert all(target.hard((right + 1) / 9 - right / 9) for right in range(9))


def test_the_tails_of_the_training_questions_become_0_and_1(made):
    labels = [made(b / 10) for b in range(-2, 8)]  # ten: the 20 % quantile is -0.1, the 80 % one 0.5
    target = BenefitTarget.from_labels([*labels, made(-1.0, "dev"), made(1.0, "test"), made(None)], 0.1, 0.2)
    assert target == BenefitTarget(0.1, -0.1, 0.5)
    assert [target.soft(b) for b in (-0.2, -0.1, 0.2, 0.5, 0.7)] == pytest.approx([0, 0, 0.5, 1, 1])
    assert (target.hard(0.1), target.hard(0.11)) == (False, True)


@pytest.mark.parametrize("values", [[], [0.3, 0.3, 0.3]])
def test_without_a_range_nothing_is_stretched(made, values):
    assert BenefitTarget.from_labels([made(b) for b in values], 0.2, 0.05) == BenefitTarget(0.2)


def test_the_greedy_answers_have_their_weight(made):
    def with_greedy(benefit, before, after):
        plain = made(benefit)
        llm = dataclasses.replace(plain.llm, greedy_correct=before)
        return dataclasses.replace(plain, llm=llm, rag=dataclasses.replace(plain.llm, greedy_correct=after))

    half = BenefitTarget(greedy=1.0)
    assert half.gain(with_greedy(0.2, False, True)) == pytest.approx(0.6)  # mended: (0.2 + 1) / 2
    assert half.gain(with_greedy(0.2, True, False)) == pytest.approx(-0.4)
    assert half.gain(with_greedy(0.2, True, True)) == pytest.approx(0.1)
    # .2 - .7 in samples, mended at half a weight: nothing gained, though the sum is not quite 0
    light = BenefitTarget(greedy=0.5)
    nothing = light.gain(with_greedy(0.2 - 0.7, False, True))
    assert nothing is not None and nothing > 0 and not light.hard(nothing)
    assert half.gain(with_greedy(0.2, True, None)) is None and half.gain(made(0.2)) is None
    assert PLAIN.gain(with_greedy(0.2, True, False)) == 0.2
    labels = [with_greedy(0.0, False, True), with_greedy(0.0, True, False), with_greedy(0.0, True, True)]
    assert BenefitTarget.from_labels(labels, 0.0, 0.01, 1.0) == BenefitTarget(0.0, -0.5, 0.5, 1.0)
