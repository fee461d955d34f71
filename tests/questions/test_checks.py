"""What a question must have, and training questions that stand in dev or test."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.questions.checks import Leak, find_leaks, problem_of, read_questions, refuse_leaks
from kbtrain.records import Question, Split

OPEN = Question("q", "Who wrote Faust?", ("Goethe",), "train", "d")
CHOICE = dataclasses.replace(OPEN, form="choice", grading="option", options=("Goethe", "Kleist"), answers=("A",))


@pytest.mark.parametrize("sound", [OPEN, CHOICE, dataclasses.replace(CHOICE, answers=("A", "B"))])
def test_a_sound_question_passes(sound: Question) -> None:
    assert problem_of(sound) is None


@pytest.mark.parametrize(
    ("question", "changed", "field", "message"),
    [
        (OPEN, {"id": " "}, "id", "empty"),
        (OPEN, {"id": "a\nb"}, "id", "line ends or control characters in 'a\\nb'"),
        (OPEN, {"id": "a\x1b[2J"}, "id", "line ends or control characters in 'a\\x1b[2J'"),
        (OPEN, {"text": "\n"}, "text", "empty"),
        (OPEN, {"answers": ()}, "answers", "no answer; give at least one"),
        (OPEN, {"answers": ("Goethe", "")}, "answers", "an answer is empty; delete it or fill it in"),
        (CHOICE, {"options": ("Goethe",)}, "options", "multiple choice with 1 option(s); give two or more"),
        (CHOICE, {"answers": ("C",)}, "answers", "'C' is not an option's letter (valid: A, B)"),
        (CHOICE, {"answers": ("Goethe",)}, "answers", "'Goethe' is not an option's letter (valid: A, B)"),
        (
            OPEN,
            {"grading": "option"},
            "answers",
            "'Goethe' is not an option's letter (valid: none, there are no options)",
        ),
    ],
)
def test_an_unsound_question_names_its_field(
    question: Question, changed: dict[str, object], field: str, message: str
) -> None:
    assert problem_of(dataclasses.replace(question, **changed)) == (field, message)  # type: ignore[arg-type]


def written(path: Path, *rows: tuple[str, Split, str]) -> Path:
    jsonl.write(path, [dataclasses.replace(OPEN, id=name, split=split, text=text) for name, split, text in rows])
    return path


def test_a_duplicate_id_names_both_lines(tmp_path: Path) -> None:
    path = written(tmp_path / "q.jsonl", ("a", "train", "x"), ("b", "train", "y"), ("a", "test", "z"))
    questions = read_questions(path)
    assert [next(questions)[0], next(questions)[0]] == [1, 2]
    with pytest.raises(UserError, match=r"q\.jsonl:3: field 'id': duplicate 'a', first in line 1$"):
        next(questions)


def test_leaks_are_found_wherever_the_twin_stands(tmp_path: Path) -> None:
    path = written(
        tmp_path / "q.jsonl",
        ("t1", "train", "The capital of France?"),
        ("d1", "dev", "capital of france"),
        ("x1", "test", "Capital of Spain"),
        ("t2", "train", "capital of Spain!"),
        ("t3", "train", "capital of Italy"),
        ("t4", "train", "capital of Italy"),  # twice in train is no leak
    )
    assert list(find_leaks(path)) == [Leak("t1", 1, "d1", 2), Leak("t2", 4, "x1", 3)]
    with pytest.raises(UserError) as caught:
        refuse_leaks(path)
    expected = "q.jsonl:1: training question 't1' is also in dev or test as 'd1' (line 2); "
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_a_dev_question_that_stands_in_test_is_a_leak_too(tmp_path: Path) -> None:
    path = written(
        tmp_path / "q.jsonl",
        ("x1", "test", "Capital of Spain"),
        ("d1", "dev", "capital of Spain?"),
        ("d2", "dev", "capital of Italy"),
        ("t1", "train", "capital of Chile"),
    )
    assert list(find_leaks(path)) == [Leak("d1", 2, "x1", 1, "dev")]
    with pytest.raises(UserError, match=r"q\.jsonl:2: dev question 'd1' is also in test as 'x1' \(line 1\); delete"):
        refuse_leaks(path)


def test_no_leak_passes(tmp_path: Path) -> None:
    path = written(tmp_path / "q.jsonl", ("t", "train", "Capital of France?"), ("d", "dev", "Capital of Franconia?"))
    refuse_leaks(path)  # raises nothing
    assert list(find_leaks(path)) == []
