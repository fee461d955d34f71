"""Grading and grouping of a question's answers."""

from __future__ import annotations

from kbtrain.labeling.indicators import Graded, grade
from kbtrain.records import Question


def test_answers_are_graded_and_grouped_after_normalisation(capital: Question) -> None:
    answers = ["Paris", "paris.", "The Paris", "It is Paris", "Lyon", "lyon!", "", " \n"]
    # correct: the three forms of Paris and "It is Paris"; groups: paris x3, "it is paris", lyon x2, each empty one
    assert grade(capital, answers) == Graded(n=8, n_correct=4, n_empty=2, n_unparsed=0, groups=(3, 2, 1, 1, 1))


def test_an_answer_that_names_no_option_is_wrong_and_counted(choice: Question) -> None:
    answers = ["B", "b", "B. Africa", "Africa", "A", "I do not know", ""]
    assert grade(choice, answers) == Graded(n=7, n_correct=4, n_empty=1, n_unparsed=1, groups=(4, 1, 1, 1))


def test_the_twenty_of_thirty_of_the_paper(capital: Question) -> None:
    graded = grade(capital, ["Paris"] * 20 + ["Rome"] * 10)
    assert (graded.n_correct, graded.n, graded.groups) == (20, 30, (20, 10))


def test_answers_that_are_graded_by_their_option_are_not_counted_as_naming_none():
    asked = {"form": "choice", "grading": "option", "options": ("红色", "蓝色")}
    sky = Question("q", "天空？", ("B",), "test", "made", "zh", **asked)
    graded = grade(sky, ["選B", "正確選項：B", "不知道"])
    assert (graded.n_correct, graded.n_unparsed) == (2, 1)
