"""Verdicts that nobody would dispute: numbers with neighbours, citations, numerals of names, hedges, scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbtrain.answers.grading import rule_verdict
from kbtrain.answers.quantities import plain_digits, quantities
from kbtrain.records import Question

ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "graded_pairs.jsonl").read_text("utf-8").splitlines()
]


def test_right_answers_are_right_and_wrong_ones_wrong():
    verdicts = {"right": True, "wrong": False, "open": None}
    for row in ROWS:
        question = Question("q", row["question"], tuple(row["answers"]), "test", "pairs")
        assert row["right"] or row["wrong"] or row["not_right"]
        found = [(verdict, answer) for verdict in verdicts for answer in row.get(verdict, [])]
        assert [pair for pair in found if rule_verdict(question, pair[1]) is not verdicts[pair[0]]] == [], question


def test_no_wrong_answer_that_looks_like_the_gold_one_is_right():
    """Of rows with ``not_right``: the rules say wrong, or give no verdict."""
    pairs = [(Question("q", row["question"], tuple(row["answers"]), "test", "pairs"), row) for row in ROWS]
    found = [answer for question, row in pairs for answer in row.get("not_right", []) if rule_verdict(question, answer)]
    assert found == []
    assert sum(len(row.get("not_right", [])) for row in ROWS) > 50


def test_few_verdicts_are_left_open():
    counts = [len(row.get(verdict, [])) for row in ROWS for verdict in ("right", "wrong", "open")]
    assert sum(counts[2::3]) <= 0.03 * sum(counts)


@pytest.mark.parametrize(
    ("text", "values", "unit"), [ ("3.2bn", {3_200_000_000}, ""), ("$5 m", {5_000_000}, "dollars"), ("5 m", {5}, "m"),
    ("1.000", {1, 1000}, ""), ("6'2\"", {74}, "inch"), ("8:00 PM", {1200}, "clock"), ("8:00", {480, 1200}, "clock"),
    ("minus 40 °C", {-40}, "c"), ("12,34,567", {1_234_567}, ""), ],
)  # fmt: skip
def test_a_quantity_is_read_with_value_and_unit(text, values, unit):
    (quantity,) = quantities(plain_digits(text))
    assert (quantity.values, quantity.unit) == (values, unit)


@pytest.mark.parametrize("text", ["F16", "1990s", "5th", "one of them", "007", "R2D2"])
def test_names_and_ordinals_are_no_quantities(text):
    assert quantities(text) == ()


def test_a_model_in_a_loop_is_graded_by_what_it_says():
    """Ten thousand places of the gold answer would be compared with each other."""
    question = Question("q", "Which city is it?", ("Paris",), "test", "pairs")
    said = {"It is Paris. ": True, "It is Lyon. ": False, "It is not Paris. ": False}
    assert {text: rule_verdict(question, 10_000 * text) for text in said} == said


@pytest.mark.parametrize(("gold", "answer"), [("Paris", "Paris, but"), ("Paris", "It is Paris but"),
                                              ("Although", "Although by Ann Lee"), ("But", "It is But")])  # fmt: skip
def test_a_connective_at_the_end_or_as_the_reference_has_a_verdict(gold, answer):
    assert rule_verdict(Question("q", "Where?", (gold,), "test", "d"), answer) is True
