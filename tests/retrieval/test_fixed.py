"""Fixed evidence: the data set's own gold passages."""

from __future__ import annotations

import dataclasses

import pytest

from kbtrain.errors import UserError
from kbtrain.records import Hit, Passage, Question
from kbtrain.retrieval.base import own_hits

PASSAGES = {name: Passage(name, name.upper(), f"text {name}") for name in "abc"}


def asked(*gold: str) -> Question:
    return Question("q", "?", ("x",), "test", "d", gold_passages=gold)


def test_gold_passages_come_in_the_questions_order() -> None:
    hits = (Hit("c", "C", "text c", 1.0), Hit("a", "A", "text a", 1.0))
    assert own_hits(asked("c", "a"), "gold_passages", PASSAGES) == hits
    assert own_hits(asked(), "gold_passages", PASSAGES) == ()


def test_context_is_all_that_came_with_the_question() -> None:
    question = dataclasses.replace(asked("c"), context_passages=("b", "c", "a"))
    assert [hit.passage_id for hit in own_hits(question, "context_passages", PASSAGES)] == ["b", "c", "a"]


@pytest.mark.parametrize("field", ["gold_passages", "context_passages"])
def test_an_unknown_passage_is_named(field: str) -> None:
    with pytest.raises(UserError, match=f"question 'q': field '{field}': no passage 'z'"):
        own_hits(dataclasses.replace(asked(), **{field: ("z",)}), field, PASSAGES)
