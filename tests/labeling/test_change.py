"""The label change: values worked by hand, its direction, its interval, and answers that say the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kbtrain.answers.grading import is_same
from kbtrain.gates.kbm.gate import needs
from kbtrain.gates.probe.gate import need_scores
from kbtrain.labeling.change import change
from kbtrain.labeling.examples import Targets, example, reference_example
from kbtrain.labeling.label import indicators, label, with_taus
from kbtrain.metrics.significance import wilson
from kbtrain.prompts.kbm import kbm_answer, kbm_prompt
from kbtrain.records import Question, SampleSet
from kbtrain.training.data import need

Answered = Callable[..., SampleSet]


def test_change_is_the_share_of_different_pairs(capital: Question) -> None:
    # llm: Paris, Paris, Rome; rag: Paris, Lyon. Of 6 pairs 2 are the same (Paris with Paris, twice).
    found = change(capital, ["Paris", "Paris", "Rome"], ["It is Paris.", "Lyon"])
    assert found is not None and found.value == pytest.approx(4 / 6)
    assert (found.low, found.high) == pytest.approx(wilson(2 * 4 / 6, 2))  # two independent pairs at least
    assert change(capital, ["Paris"] * 9, ["Paris"] * 9) == (0.0, 0.0, wilson(0, 9)[1])
    assert change(capital, ["Rome"] * 9, ["Paris"] * 9) == (1.0, wilson(9, 9)[0], 1.0)
    assert change(capital, [], ["Paris"]) is None


def test_no_gold_answer_is_read(capital: Question) -> None:
    answers = ["Paris", "Rome", "paris."], ["The capital is Paris", "Oslo"]
    hidden = replace(capital, answers=(), gold="hidden")
    assert (
        change(hidden, *answers) == change(capital, *answers) == change(replace(capital, answers=("Oslo",)), *answers)
    )


def test_a_pair_without_a_verdict_is_left_out(capital: Question) -> None:
    found = change(capital, ["a", "b"], ["c"], lambda _, one, other: None if one == "a" else False)
    assert found is not None and found.value == 1.0
    assert change(capital, ["a"], ["c"], lambda *_: None) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Paris", "It is Paris, in the north of France.", True),
        ("Paris", "Not Paris but Lyon", False),
        ("2,000", "two thousand", True),
        ("", "...", True),
        ("", "Paris", False),
        ("I do not know.", "There is no information on it.", True),
        ("I do not know.", "Paris", False),
        ("巴黎", "法國首都是巴黎。", True),
        ("巴黎", "里昂", False),
    ],
)
def test_answers_are_the_same_by_the_rule_that_grades_and_in_both_directions(
    capital: Question, one: str, other: str, same: bool
) -> None:
    hidden = replace(capital, answers=(), gold="hidden", language="zh" if "巴" in one else "en")
    assert is_same(hidden, one, other) is same
    assert is_same(hidden, other, one) is same


def test_answers_to_a_yes_no_question_are_compared_by_what_they_say(capital: Question) -> None:
    asked = replace(capital, text="Is Paris the capital of France?", answers=())
    assert is_same(asked, "Yes, it has been for centuries.", "Yes.")
    assert is_same(asked, "Yes, since 987.", "Yes, by law.")
    assert not is_same(asked, "No, that is Lyon.", "Yes, that is Lyon.")
    chinese = replace(capital, text="巴黎是法国的首都吗？", answers=(), language="zh")
    assert is_same(chinese, "是的，是首都。", "是") and not is_same(chinese, "是的。", "不是。")


def test_choices_are_compared_by_their_letters(choice: Question) -> None:
    hidden = replace(choice, answers=())
    assert is_same(hidden, "B", "The answer is (B).")
    assert is_same(hidden, "B", "Africa")
    assert not is_same(hidden, "A", "B") and not is_same(hidden, "A", "none of them")


def test_the_label_rises_with_what_a_search_changes(capital: Question, answered: Answered) -> None:
    llm = answered("Paris", "Paris", "Rome", "Rome")
    labels = {}
    for name, texts in {"little": ("Paris", "Rome"), "much": ("Oslo", "Lyon")}.items():
        rag = answered(*texts, condition="rag")
        found = {made.condition: indicators(capital, made)[0] for made in (llm, rag)}
        changed = change(capital, [s.text for s in llm.samples], [s.text for s in rag.samples])
        labels[name] = label(capital, found, 0.5, 0.5, changed, 0.5)  # type: ignore[arg-type]
    assert (labels["little"].change, labels["little"].changes) == (0.5, False)  # not above tau
    assert (labels["much"].change, labels["much"].changes) == (1.0, True)
    assert with_taus(labels["little"], 0.5, 0.5, 0.4).changes is True
    made = {name: example(capital, one) for name, one in labels.items()}
    assert (made["much"].change, made["much"].soft_change) == (True, 1.0)
    assert need(made["much"], "change", "soft") == 1.0 > need(made["little"], "change", "soft") == 0.5
    assert need(made["much"], "change") == 1.0  # higher = retrieval more needed
    assert reference_example(capital, labels["much"], "x").change is None
    targets = Targets(("mastery", "change"))
    ungraded = replace(made["much"], mastery=None)
    assert not targets.complete(ungraded) and targets.complete(ungraded, gold=False)


def test_scores_of_every_gate_that_learns_it_rise_with_change() -> None:
    assert need_scores([0.2, 0.7], "change", "ridge") == [0.2, 0.7]  # probe and draft probe
    assert needs("change", [0.2, 0.7]) == [0.2, 0.7]  # KBM
    asked = kbm_prompt("q", None, "en", ("certainty", "change"))
    assert "Would retrieved information change your answer? (change: True/False)" in asked
    assert kbm_answer({"change": True}) == '{"change": "True"}'
    plain = kbm_prompt("q", None, "zh", ("mastery", "certainty"))
    assert "change" not in plain and plain != kbm_prompt("q", None, "zh", ("mastery", "certainty", "change"))


def test_the_interval_covers_the_true_change(capital: Question) -> None:
    random = np.random.default_rng(3)
    names, without, with_passages = ["Paris", "Rome", "Oslo"], np.array([0.6, 0.3, 0.1]), np.array([0.8, 0.1, 0.1])
    truth, inside = 1 - float(without @ with_passages), 0
    for _ in range(300):
        found = change(capital, random.choice(names, 10, p=without), random.choice(names, 10, p=with_passages))
        assert found is not None
        inside += found.low <= truth <= found.high
    assert inside / 300 >= 0.93
