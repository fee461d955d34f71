"""Labels to examples: targets and prompts as promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kbtrain.errors import UserError
from kbtrain.labeling.examples import BenefitTarget, Targets, example, reference_example
from kbtrain.labeling.label import indicators, label
from kbtrain.prompts.kbm import DEFAULT_KEYS, PAPER_KEYS, query_text
from kbtrain.records import Label, Question, SampleSet

Answered = Callable[..., SampleSet]


@pytest.fixture
def labelled(capital: Question, answered: Answered) -> Label:
    llm = indicators(capital, answered("Paris", "Rome", "Oslo", "Lyon"))[0]
    rag = indicators(capital, answered("Paris", "Paris", "Paris", "Lyon", condition="rag"))[0]
    return label(capital, {"llm": llm, "rag": rag}, 0.5, 0.3)


def test_the_plain_example_carries_llm_targets_and_half_of_one_plus_benefit(capital: Question, labelled: Label) -> None:
    made = example(capital, labelled)
    assert (made.id, made.question_id, made.split, made.reference) == ("q1", "q1", "train", None)
    assert (made.mastery, made.certainty, made.benefit) == (False, False, True)
    assert (made.soft_mastery, made.soft_certainty) == (0.25, labelled.llm.certainty)
    assert made.soft_benefit == (1 + 0.5) / 2
    assert example(capital, labelled, BenefitTarget(tau=0.5)).benefit is False


def test_the_reference_example_carries_rag_targets_and_no_benefit(capital: Question, labelled: Label) -> None:
    made = reference_example(capital, labelled, "Paris is in France.")
    assert (made.id, made.question_id, made.reference) == ("q1#reference", "q1", "Paris is in France.")
    assert labelled.rag is not None
    assert (made.mastery, made.soft_mastery, made.soft_certainty) == (True, 0.75, labelled.rag.certainty)
    assert (labelled.certain, made.certainty) == (False, True)
    assert (made.benefit, made.soft_benefit) == (None, None)


def test_without_a_label_there_are_no_targets(choice: Question) -> None:
    for made in (example(choice, None), reference_example(choice, None, "text")):
        targets = (
            made.mastery,
            made.certainty,
            made.benefit,
            made.soft_mastery,
            made.soft_certainty,
            made.soft_benefit,
        )
        assert targets == (None,) * 6
        assert made.question == query_text(choice) == "Where is Kenya?\nA. Asia\nB. Africa\nC. Europe"


def test_facts_about_the_question_need_no_label_and_unknown_words_say_nothing(capital: Question) -> None:
    kinds = {"fast-changing": True, "slow-changing": True, "never-changing": False, "sometimes": None, None: None}
    made = {kind: example(replace(capital, fact_type=kind, needs_knowledge=kind is None), None) for kind in kinds}
    assert {kind: one.time_sensitive for kind, one in made.items()} == kinds
    assert made[None].needs_knowledge is True and made["sometimes"].needs_knowledge is False


def test_targets_count_classes_and_leave_out_what_is_incomplete(capital: Question, labelled: Label) -> None:
    targets = Targets(DEFAULT_KEYS)
    assert targets.complete(example(capital, labelled))
    assert not targets.complete(reference_example(capital, labelled, "x"))
    assert targets.as_dict() == {"mastery": {"False": 1}, "certainty": {"False": 1}, "benefit": {"True": 1}}


def test_without_gold_answers_certainty_alone_is_asked_for(capital: Question, labelled: Label) -> None:
    ungraded = replace(labelled, known=None, benefit=None)
    made = example(capital, ungraded)
    assert made.mastery is None and made.certainty is False
    targets = Targets(DEFAULT_KEYS)
    assert not targets.complete(made) and targets.complete(made, gold=False)
    assert targets.as_dict() == {"certainty": {"False": 1}} and targets.seen == 2


def test_one_class_only_is_one_line_naming_the_target(capital: Question, labelled: Label) -> None:
    targets = Targets(PAPER_KEYS)
    targets.complete(example(capital, labelled))
    with pytest.raises(
        UserError, match=r"^target 'certainty': all 1 training examples are False; change tau_certainty"
    ):
        targets.check()
    unlabelled = Targets(PAPER_KEYS)
    unlabelled.check()  # no training question at all: a run to be scored
    assert not unlabelled.complete(example(capital, None))
    with pytest.raises(UserError, match=r"^no training question has labels for mastery, certainty;"):
        unlabelled.check()
