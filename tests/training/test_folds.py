"""Folds of cross-validation that keep entities and dialogues together."""

from tiny_turns import turn

from kbtrain.records import GateExample
from kbtrain.training.folds import folds, groups_of


def question(number: int, *entities: str) -> GateExample:
    return GateExample(f"q{number}", f"q{number}", "train", f"q{number}?", "en", None, entities=entities)


def test_examples_are_together_that_share_an_entity_themselves_or_through_others():
    rows = [
        question(0, "city:Lyon", "country:France"),
        question(1, "city:Turin", "country:Italy"),
        question(2),
        question(3, "Country:france", "language:fr"),  # a spelling of the same entity
        question(4, "language:fr"),
        question(5),
    ]
    assert groups_of(rows) == [0, 1, 2, 0, 0, 5]


def test_two_groups_that_a_later_question_links_are_one():
    assert groups_of([question(0, "a"), question(1, "b"), question(2, "b", "a"), question(3, "c")]) == [0, 0, 0, 3]


def test_where_everything_hangs_together_each_example_is_alone():
    assert groups_of([question(i, "country:France", f"city:{i}") for i in range(4)]) == [0, 1, 2, 3]


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


def test_of_a_single_group_each_place_is_held_out_alone():
    drawn = folds([7] * 12, seed=3)
    assert drawn == folds(range(12), seed=3) and len(drawn) == 5
