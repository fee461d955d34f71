"""Gold answers as tables write them: several in a cell, labels, one answer for all."""

from __future__ import annotations

import pytest

from kbtrain.questions.base import LeftOutAnswers, Loaded
from kbtrain.questions.checks import FirstSeen
from kbtrain.questions.gold import GoldCounts, without_placeholders
from kbtrain.records import Question


def loaded(*answers: str) -> Loaded:
    return Loaded(Question("q", "Which city?", answers, "train", "table"), "table.csv", 1)


@pytest.mark.parametrize(
    ("cell", "answers"),
    [
        ("Paris|Lutetia", ("Paris", "Lutetia")),
        ("Paris; Lutetia", ("Paris", "Lutetia")),
        ("Paris / Lutetia", ("Paris", "Lutetia")),
        ("Paris OR Lutetia", ("Paris", "Lutetia")),
        ("Paris\nLutetia", ("Paris", "Lutetia")),
        ("Beijing (formerly Peking)", ("Beijing", "Peking")),
        ("AC/DC", ("AC/DC",)),
        ("Truth or Dare", ("Truth or Dare",)),
        ("Steins;Gate", ("Steins;Gate",)),
    ],
)
def test_a_cell_of_several_answers_is_cut_where_no_name_has_the_sign(cell: str, answers: tuple[str, ...]) -> None:
    assert without_placeholders(loaded(cell)).question.answers == answers


@pytest.mark.parametrize("cell", ["NoAns", "invalid question", "I don\u2019t know.", "Keine Antwort"])
def test_what_stands_for_no_answer_is_no_gold_answer(cell: str) -> None:
    question = without_placeholders(loaded(cell)).question
    assert (question.answers, question.gold) == ((), "none")


@pytest.mark.parametrize(
    ("golds", "line"),
    [
        ([str(i % 2) for i in range(30)], "warning: all accepted answers are 0 or 1"),
        ([f"Paris{i},Lutetia{i}" for i in range(30)], "warning: 30 of 30 accepted answers hold ','"),
        (["Paris"] * 20 + [f"City {i}" for i in range(10)], "warning: 20 of 30 questions have the accepted answer"),
        ([f"City {i}" for i in range(30)], ""),
    ],
)
def test_a_column_that_looks_like_another_one_is_reported(golds: list[str], line: str) -> None:
    counts = GoldCounts()
    with FirstSeen() as texts:
        for i, gold in enumerate(golds):
            counts.add(Question(f"q{i}", f"Which is city {i}?", (gold,), "train", "t"), LeftOutAnswers(0, 0), texts)
    lines = list(counts.lines())
    assert [text[: len(line)] for text in lines] == ([line] if line else [])
