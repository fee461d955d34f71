"""What a question must have, leaks, and which questions are taken."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.questions.base import Loaded, context
from kbtrain.questions.checks import Leak, find_leaks, problem_of, read_questions, refuse_leaks
from kbtrain.questions.collect import CollectCounts, PickRule, pick_questions, write_questions
from kbtrain.records import Passage, Question, Split

OPEN = Question("q", "Who wrote Faust?", ("Goethe",), "train", "d")
CHOICE = dataclasses.replace(OPEN, form="choice", grading="option", options=("Goethe", "Kleist"), answers=("A",))


@pytest.mark.parametrize(
    ("question", "changed", "field", "message"), [ (OPEN, {"id": " "}, "id", "empty"),
    (OPEN, {"id": "a\nb"}, "id", "line ends or control characters in 'a\\nb'"),
    (OPEN, {"id": "a\x1b[2J"}, "id", "line ends or control characters in 'a\\x1b[2J'"),
    (OPEN, {"text": "\n"}, "text", "empty"), (OPEN, {"answers": ()}, "answers", "no answer; give at least one"),
    (OPEN, {"answers": ("Goethe", "")}, "answers", "an answer is empty; delete it or fill it in"),
    (CHOICE, {"options": ("Goethe",)}, "options", "multiple choice with 1 option(s); give two or more"),
    (CHOICE, {"answers": ("C",)}, "answers", "'C' is not an option's letter (valid: A, B)"),
    (CHOICE, {"answers": ("Goethe",)}, "answers", "'Goethe' is not an option's letter (valid: A, B)"), ( OPEN,
    {"grading": "option"}, "answers", "'Goethe' is not an option's letter (valid: none, there are no options)", ), ],
)  # fmt: skip
def test_an_unsound_question_names_its_field(question, changed, field, message):
    assert problem_of(dataclasses.replace(question, **changed)) == (field, message)


def written(path, *rows):
    jsonl.write(path, [dataclasses.replace(OPEN, id=name, split=split, text=text) for name, split, text in rows])
    return path


def test_a_duplicate_id_names_both_lines(tmp_path):
    path = written(tmp_path / "q.jsonl", ("a", "train", "x"), ("b", "train", "y"), ("a", "test", "z"))
    questions = read_questions(path)
    assert [next(questions)[0], next(questions)[0]] == [1, 2]
    with pytest.raises(UserError, match=r"q\.jsonl:3: field 'id': duplicate 'a', first in line 1$"):
        next(questions)


@pytest.mark.parametrize(
    ("rows", "leaks", "told"),
    [
        (  # wherever the twin stands; twice in train is no leak
            [("t1", "train", "The capital of France?"), ("d1", "dev", "capital of france"), ("x1", "test", "In Spain"),
             ("t2", "train", "in Spain!"), ("t3", "train", "capital of Italy"), ("t4", "train", "capital of Italy")],
            [Leak("t1", 1, "d1", 2), Leak("t2", 4, "x1", 3)],
            r"q\.jsonl:1: training question 't1' is also in dev or test as 'd1' \(line 2\); [^\n]*$",
        ),
        (
            [("x1", "test", "Capital of Spain"), ("d1", "dev", "capital of Spain?"), ("d2", "dev", "capital of Italy"),
             ("t1", "train", "capital of Chile")],
            [Leak("d1", 2, "x1", 1, "dev")],
            r"q\.jsonl:2: dev question 'd1' is also in test as 'x1' \(line 1\); delete",
        ),
    ],
)  # fmt: skip
def test_a_question_that_stands_in_a_later_split_too_is_a_leak(rows, leaks, told, tmp_path):
    path = written(tmp_path / "q.jsonl", *rows)
    assert list(find_leaks(path)) == leaks
    with pytest.raises(UserError, match=told):
        refuse_leaks(path)


SPLITS: tuple[Split, ...] = ("train", "dev", "test")
QUESTIONS = [
    Loaded(Question(f"q{i}", f"What is {i}?", ("a",), SPLITS[i % 3], "d"), "x.jsonl", i + 1) for i in range(300)
]  # fmt: skip


def ids(wanted, questions=QUESTIONS, tally=None):
    return [one.question.id for one in pick_questions(lambda: iter(questions), wanted, tally or CollectCounts())]


def test_the_first_ones_up_to_each_limit():
    tally = CollectCounts()
    assert ids(PickRule({"train": 2, "dev": 0, "test": 1}), tally=tally) == ["q0", "q2", "q3"]
    assert (tally.splits, tally.dropped) == ({"train": 2, "test": 1}, {"beyond": 297})
    assert ids(PickRule({"all": 4})) == ["q0", "q1", "q2", "q3"]
    assert len(ids(PickRule({}))) == 300


def test_a_draw_has_the_wanted_size_and_does_not_depend_on_the_order():
    wanted = PickRule({"train": 20, "dev": 7, "test": None}, "random", 3)
    drawn = ids(wanted)
    assert Counter(int(name[1:]) % 3 for name in drawn) == {0: 20, 1: 7, 2: 100}
    assert drawn == sorted(drawn, key=lambda name: int(name[1:]))
    assert set(ids(wanted, QUESTIONS[::-1])) == set(drawn)
    assert set(ids(PickRule({"train": 20, "dev": 7, "test": None}, "random", 4))) != set(drawn)
    assert len(ids(PickRule({"all": 50}, "random"))) == 50
    assert ids(PickRule({"all": 0}, "random")) == []
    assert len(ids(PickRule({"all": 1000}, "random"))) == 300


def without(gold):
    return Loaded(dataclasses.replace(QUESTIONS[0].question, id=gold, answers=(), gold=gold), "x.jsonl", 1)


def test_questions_without_a_known_answer_are_dropped_or_kept_and_counted():
    tally = CollectCounts()
    questions = [*QUESTIONS[:2], without("none"), without("hidden")]
    assert ids(PickRule({}, drop=frozenset({"hidden"})), questions, tally) == ["q0", "q1", "none"]
    assert str(tally) == "skipped: 1 with hidden answers; 1 of the collected are impossible"
    tally = CollectCounts()
    rule = PickRule({"all": 1}, "random", drop=frozenset({"none", "hidden"}))
    assert ids(rule, questions, tally) in (["q0"], ["q1"])
    assert str(tally) == "skipped: 1 with hidden answers, 1 impossible, 1 beyond the limits"
    assert str(CollectCounts()) == "skipped: none"


def test_a_passage_is_written_once(tmp_path):
    first, second = context("d", "T", "x"), context("d", "T", "y")
    assert first.id != second.id and first == context("d", "T", "x")
    of_each = (first, second, first), (second,)
    stream = [dataclasses.replace(one, passages=own) for one, own in zip(QUESTIONS, of_each, strict=False)]
    assert write_questions(tmp_path / "run", stream, [second], CollectCounts()) == (2, 2)
    assert list(jsonl.read(Passage, tmp_path / "run" / "passages.jsonl")) == [first, second]
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"passages.jsonl", "questions.jsonl"}
