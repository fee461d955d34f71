"""The embedded questions: what they promise to whoever trains and evaluates on them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import combinations

import pytest
from support import scripts

from kbtrain.answers.grading import contains, is_correct, option_letter
from kbtrain.answers.words import normalise
from kbtrain.errors import UserError
from kbtrain.questions.base import Reading
from kbtrain.questions.catalogue import atlas_passages
from kbtrain.questions.load import load_questions
from kbtrain.records import Passage, Question


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return list(load_questions("atlas"))


@pytest.fixture(scope="module")
def passages() -> dict[str, Passage]:
    return {passage.id: passage for passage in atlas_passages()}


def test_it_is_large_and_varied_enough(questions: list[Question]) -> None:
    assert len(questions) >= 1500
    assert len({q.relation for q in questions}) >= 8
    splits = Counter(q.split for q in questions)
    assert splits["test"] >= 500
    assert 0.55 < splits["train"] / len(questions) < 0.65
    kinds = Counter((q.form, q.hops) for q in questions)
    assert min(kinds["open", 1], kinds["open", 2], kinds["choice", 1]) >= 200
    assert kinds["choice", 2] >= 20


def test_every_relation_stands_in_every_split(questions: list[Question]) -> None:
    by_split = defaultdict(set)
    for question in questions:
        by_split[question.split].add(question.relation)
    assert by_split["train"] == by_split["dev"] == by_split["test"]


def test_no_entity_of_one_split_stands_in_another(questions: list[Question]) -> None:
    seen = defaultdict(set)
    for question in questions:
        assert question.entities
        for entity in question.entities:
            seen[entity].add(question.split)
    assert {entity: splits for entity, splits in seen.items() if len(splits) > 1} == {}


def test_cities_share_the_split_of_the_country_their_passage_names(
    questions: list[Question], passages: dict[str, Passage]
) -> None:
    split = {entity: q.split for q in questions for entity in q.entities}
    countries = {
        p.text.split(" is ")[0].removeprefix("The "): p.id for p in passages.values() if p.id[:8] == "country:"
    }
    checked = 0
    for entity in split:
        home = re.match(r".* is (?:in|the capital of) (?:the )?([^,.]+)\. The pop", passages[entity].text)
        country = countries.get(home[1]) if home else None
        if entity.startswith("city:") and country in split:
            assert split[entity] == split[country]
            checked += 1
    assert checked > 300


def test_ids_and_wordings_are_unique(questions: list[Question], passages: dict[str, Passage]) -> None:
    assert len({q.id for q in questions}) == len(questions)
    assert len({(q.text, q.form) for q in questions}) == len(questions)
    assert len(passages) == sum(1 for _ in atlas_passages())


def test_gold_passages_state_the_answer(questions: list[Question], passages: dict[str, Passage]) -> None:
    for question in questions:
        text = " ".join(passages[name].text for name in question.gold_passages)
        gold = question.answers
        if question.form == "choice":
            gold = (question.options["ABCD".index(question.answers[0])],)
        assert any(contains(text, answer) for answer in gold), question.id


def test_no_wrong_option_is_a_gold_answer(questions: list[Question]) -> None:
    choices = [q for q in questions if q.form == "choice"]
    assert len(choices) >= 400
    for question in choices:
        assert question.grading == "option" and len(question.options) == 4 and len(question.answers) == 1
        assert len({normalise(option) for option in question.options}) == 4
        assert is_correct(question, question.answers[0])
        assert option_letter(question.options["ABCD".index(question.answers[0])], question.options) in question.answers


def test_letters_are_balanced(questions: list[Question]) -> None:
    for split in ("train", "dev", "test"):
        letters = Counter(q.answers[0] for q in questions if q.form == "choice" and q.split == split)
        assert max(letters.values()) - min(letters.values()) <= 0.12 * letters.total()


def test_no_answer_is_an_everyday_word_or_part_of_another_country(questions: list[Question]) -> None:
    small_talk = "I am not sure what the answer is, so it may be as I said: no idea. Go on to us."
    countries = {a for q in questions if q.relation == "country" and q.form == "open" for a in q.answers[:1]}
    for question in questions:
        if question.form == "open":
            assert not is_correct(question, small_talk), question.id
    assert [pair for pair in combinations(sorted(countries), 2) if contains(*pair) or contains(*pair[::-1])] == []


def test_open_questions_do_not_give_their_answer_away(questions: list[Question]) -> None:
    assert [q.id for q in questions if q.form == "open" and is_correct(q, q.text)] == []


def test_popularity_reaches_from_the_best_known_to_the_obscure(questions: list[Question]) -> None:
    popularity = {q.id: q.popularity or 0.0 for q in questions}
    assert popularity["capital/country/FR/open"] > 0.85
    for low, high in ((0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.01)):
        assert sum(low <= value < high for value in popularity.values()) >= 0.12 * len(popularity)


def test_every_entity_has_a_short_passage(questions: list[Question], passages: dict[str, Passage]) -> None:
    assert {entity for q in questions for entity in q.entities} <= set(passages)
    lengths = sorted(len(passage.text.split()) for passage in passages.values())
    assert lengths[len(lengths) // 2] <= 40
    assert lengths[-1] <= 80


@pytest.mark.parametrize(
    ("identity", "answer"),
    [
        ("capital/country/FR/open", "Paris"),
        ("capital/state/TX/open", "Austin"),
        ("atomic_number/element/Fe/open", "26"),
        ("currency/country/JP/open", "yen"),
    ],
)
def test_well_known_facts(questions: list[Question], identity: str, answer: str) -> None:
    assert is_correct(next(q for q in questions if q.id == identity), answer)


def test_the_second_set_asks_openly_about_the_same_things_in_the_same_splits(
    questions: list[Question], passages: dict[str, Passage]
) -> None:
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


def test_collecting_the_second_set_brings_the_passages(tmp_path) -> None:
    done = scripts.run("data_gen/collect.py", "--dataset", "atlas_known", "--run", tmp_path, "--train", "5")
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "passages.jsonl").read_text().splitlines()) == len(list(atlas_passages()))
    with pytest.raises(UserError, match="data set 'atlas_known' has its own splits"):
        next(load_questions("atlas_known", None, Reading(split="test")))
