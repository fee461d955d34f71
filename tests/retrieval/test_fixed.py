"""Fixed evidence: the data set's own gold passages."""

from __future__ import annotations

import dataclasses

import pytest

from kbtrain.errors import UserError
from kbtrain.records import Hit, Passage, Question
from kbtrain.retrieval.base import context_hits, fixed_hits

PASSAGES = {name: Passage(name, name.upper(), f"text {name}") for name in "abc"}


def asked(*gold: str) -> Question:
    return Question("q", "?", ("x",), "test", "d", gold_passages=gold)


def test_gold_passages_come_in_the_questions_order_up_to_k() -> None:
    assert fixed_hits(asked("c", "a"), PASSAGES, 3) == (Hit("c", "C", "text c", 1.0), Hit("a", "A", "text a", 1.0))
    assert [hit.passage_id for hit in fixed_hits(asked("c", "a"), PASSAGES, 1)] == ["c"]
    assert fixed_hits(asked(), PASSAGES, 3) == ()


def test_context_is_all_that_came_with_the_question() -> None:
    question = dataclasses.replace(asked("c"), context_passages=("b", "c", "a"))
    assert [hit.passage_id for hit in context_hits(question, PASSAGES, 3)] == ["b", "c", "a"]
    assert [hit.passage_id for hit in context_hits(question, PASSAGES, 2)] == ["b", "c"]
    with pytest.raises(UserError, match="question 'q': field 'context_passages': no passage 'z'"):
        context_hits(dataclasses.replace(question, context_passages=("z",)), PASSAGES, 3)


def test_an_unknown_passage_is_named() -> None:
    with pytest.raises(UserError, match="question 'q': field 'gold_passages': no passage 'z'"):
        fixed_hits(asked("z"), PASSAGES, 3)
