"""Folds of cross-validation that keep entities and dialogues together."""

from collections import Counter

import numpy as np
import pytest
from tiny_turns import turn

from kbtrain.errors import UserError
from kbtrain.records import GateExample
from kbtrain.training.folds import folds, groups_of


def question(number, *entities):
    return GateExample(f"q{number}", f"q{number}", "train", f"q{number}?", "en", None, entities=entities)


def test_questions_are_together_that_ask_about_one_entity_and_not_those_that_mention_another():
    rows = [
        question(0, "city:Lyon", "country:France"),
        question(1, "city:Turin", "country:Italy"),
        question(2),
        question(3, "City:lyon", "language:fr"),  # a spelling of the same entity
        question(4, "country:France"),
        question(5, "language:fr", "country:France"),
    ]
    assert groups_of(rows) == [0, 1, 2, 0, 4, 5]


def test_two_names_a_question_do_not_make_one_group_of_most_questions():
    """1,000 questions that name two of 1,000 entities: linked through each other, one group would hold 954."""
    rng = np.random.default_rng(0)
    rows = [question(i, *(f"e{one}" for one in rng.choice(1000, 2, replace=False))) for i in range(1000)]
    assert max(Counter(groups_of(rows)).values()) <= 7
    assert [len(held) for _, held in folds(groups_of(rows), seed=0)] == [200] * 5


def test_a_fold_that_holds_out_more_than_three_tenths_is_refused_by_the_entity_s_name():
    rows = [question(i, f"city:{i}" if i % 3 else "country:France", "x") for i in range(60)]
    message = "would hold out 33% of the 60 training questions .at most 30%.: 20 are about 'country:France'. Name"
    with pytest.raises(UserError, match=message):
        groups_of(rows)
    assert len(set(groups_of(rows[:18]))) == 13  # a few questions: no cross-validation says much of them
    with pytest.raises(UserError, match="hold out 100% of the 20 training questions"):
        groups_of([question(i, "country:France") for i in range(20)])


def test_turns_of_a_dialogue_are_together():
    rows = [turn(0, dialogue_id="a"), turn(0, dialogue_id="b"), turn(0, dialogue_id="a")]
    assert groups_of(rows) == [0, 1, 0]


def test_folds_hold_out_every_place_once_and_whole_groups():
    groups = [i // 3 for i in range(40)]
    drawn = folds(groups, seed=1)
    assert sorted(place for _, rest in drawn for place in rest) == list(range(40)) and len(drawn) == 5
    for fit, rest in drawn:
        assert sorted(fit + rest) == list(range(40))
        assert not {groups[i] for i in fit} & {groups[i] for i in rest}
    assert folds(groups, seed=1) == drawn != folds(groups, seed=2)
    assert len(folds([0, 0, 1, 1], seed=0)) == 2  # never more folds than groups


def test_questions_alone_are_scikit_learn_s_folds():
    from sklearn.model_selection import KFold

    expected = KFold(5, shuffle=True, random_state=3).split(range(23))
    assert folds(range(23), seed=3) == [(fit.tolist(), rest.tolist()) for fit, rest in expected]


def test_folds_of_unequal_groups_are_as_equal_as_these_allow():
    groups = [group for group, size in enumerate([19, 19, 17, 15, 10, *[1] * 20]) for _ in range(size)]
    for seed in range(5):
        assert sorted(len(rest) for _, rest in folds(groups, seed)) == [20] * 5
