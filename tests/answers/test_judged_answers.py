"""Precision and recall of the rules on answers that one reader judged, by kind.

``judged_answers.jsonl`` has a line an answer: its kind, where it is from (written for this table, or an answer of
SmolLM2-135M-Instruct, Apache-2.0, to questions written for it), question, gold answers, answer, and the reader's
verdict. ``half``: the rules were written with the ``seen`` half in view; ``held`` was looked at once, afterwards.
studies/notes/grading.md has the figures before these rules and after.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kbtrain.answers.grading import rule_verdict
from kbtrain.records import Question

ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "judged_answers.jsonl").read_text("utf-8").splitlines()
]
FLOORS = {  # kind: precision, recall
    "abbreviation": (0.98, 0.97),
    "accent": (1.0, 1.0),
    "choice": (0.70, 1.0),
    "date": (0.96, 1.0),
    "hedge": (1.0, 1.0),
    "longer name": (1.0, 0.94),
    "negation": (1.0, 1.0),
    "number": (1.0, 1.0),
    "ordinal": (1.0, 1.0),
    "plain": (1.0, 1.0),
    "short name": (1.0, 1.0),
    "unit": (1.0, 0.97),
    "yes/no": (1.0, 0.79),
}


def question(row):
    return Question("q", row["question"], tuple(row["answers"]), "test", "judged")


def counts(rows):
    """Number of answers by the rule's verdict and the reader's."""
    return Counter((rule_verdict(question(row), row["answer"]), row["right"]) for row in rows)


def test_the_table_is_large_enough_and_a_third_of_it_are_answers_of_a_model():
    assert len(ROWS) >= 400 and len({(r["question"], *r["answers"], r["answer"]) for r in ROWS}) == len(ROWS)
    sources = Counter(row["source"] for row in ROWS)
    assert set(sources) == {"written", "SmolLM2-135M-Instruct"}
    assert sources["SmolLM2-135M-Instruct"] * 3 >= len(ROWS)
    assert {row["kind"] for row in ROWS} == FLOORS.keys() and {row["half"] for row in ROWS} == {"seen", "held"}


@pytest.mark.parametrize("kind", FLOORS)
def test_precision_and_recall_hold_their_floors(kind):
    found = counts([row for row in ROWS if row["kind"] == kind])
    right, said = found[True, True], found[True, True] + found[True, False]
    truly = sum(n for (_, judged_right), n in found.items() if judged_right)
    precision, recall = FLOORS[kind]
    assert right / said >= precision
    assert right / truly >= recall


def test_few_answers_have_no_verdict_and_most_of_them_to_yes_no_questions():
    without = Counter(row["kind"] for row in ROWS if rule_verdict(question(row), row["answer"]) is None)
    assert without["yes/no"] <= 0.28 * sum(row["kind"] == "yes/no" for row in ROWS)
    assert without.total() - without["yes/no"] <= 0.01 * len(ROWS)
