"""The embedded questions: what they promise to whoever trains and evaluates on them."""

from collections import Counter, defaultdict

import pytest
from support.questions import load_questions

from kbtrain.answers.grading import contains, is_correct, option_letter
from kbtrain.answers.words import normalise
from kbtrain.questions.catalogue import atlas_passages


@pytest.fixture(scope="module")
def questions():
    return list(load_questions("atlas"))


@pytest.fixture(scope="module")
def passages():
    return {passage.id: passage for passage in atlas_passages()}


def test_it_is_large_and_varied_enough(questions):
    assert len(questions) >= 1500
    assert len({q.relation for q in questions}) >= 8
    splits = Counter(q.split for q in questions)
    assert splits["test"] >= 500
    assert 0.55 < splits["train"] / len(questions) < 0.65
    kinds = Counter((q.form, q.hops) for q in questions)
    assert min(kinds["open", 1], kinds["open", 2], kinds["choice", 1]) >= 200
    assert kinds["choice", 2] >= 20


def test_every_relation_stands_in_every_split_and_no_entity_in_two(questions):
    by_split, seen = defaultdict(set), defaultdict(set)
    for question in questions:
        by_split[question.split].add(question.relation)
        assert question.entities
        for entity in question.entities:
            seen[entity].add(question.split)
    assert by_split["train"] == by_split["dev"] == by_split["test"]
    assert {entity: splits for entity, splits in seen.items() if len(splits) > 1} == {}


def test_gold_passages_state_the_answer(questions, passages):
    for question in questions:
        text = " ".join(passages[name].text for name in question.gold_passages)
        gold = question.answers
        if question.form == "choice":
            gold = (question.options["ABCD".index(question.answers[0])],)
        assert any(contains(text, answer) for answer in gold), question.id


def test_no_wrong_option_is_a_gold_answer(questions):
    choices = [q for q in questions if q.form == "choice"]
    assert len(choices) >= 400
    for question in choices:
        assert question.grading == "option" and len(question.options) == 4 and len(question.answers) == 1
        assert len({normalise(option) for option in question.options}) == 4
        assert is_correct(question, question.answers[0])
        assert option_letter(question.options["ABCD".index(question.answers[0])], question.options) in question.answers


def test_the_second_set_asks_openly_about_the_same_things_in_the_same_splits(questions, passages):
    known = list(load_questions("atlas_known"))
    assert len(known) >= 1400 and Counter(q.split for q in known)["test"] >= 350
    assert {q.form for q in known} == {"open"} and {q.dataset for q in known} == {"atlas_known"}
    assert sum((q.popularity or 0) >= 0.5 for q in known) > 0.85 * len(known)
    assert all(passage in passages for q in known for passage in q.gold_passages)
    split_of = {q.id: q.split for q in questions}
    assert all(split_of.get(q.id, q.split) == q.split for q in known)
    by_entity = defaultdict(set)
    for q in known:
        by_entity[q.entities[0]].add(q.split)
    assert all(len(splits) == 1 for splits in by_entity.values())
