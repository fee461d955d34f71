"""Masking: every gold alias, in any case, as whole words, and nothing else."""

from __future__ import annotations

import pytest

from kbtrain.records import Question
from kbtrain.retrieval.mask import mask_answers


def asked(*answers: str, **more: object) -> Question:
    return Question("q", "?", answers, "test", "d", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answers", "text", "masked"),
    [
        (("Paris",), "Paris is large; PARIS, paris. Parisian!", "MASK is large; MASK, MASK. Parisian!"),
        (("dollar", "US dollar"), "The US dollar is a dollar.", "The MASK is a MASK."),
        (("10",), "10 of 1066, not 100", "MASK of 1066, not 100"),
        (("O",), "The symbol of oxygen is O.", "The symbol of oxygen is MASK."),
        ((".bo",), "Its domain is .bo. Not .bob", "Its domain is MASK. Not .bob"),
        (("C++",), "C++ and C", "MASK and C"),
        (("New York",), "in new\nYork now", "in MASK now"),
        (("São Paulo",), "são paulo", "MASK"),
        (("北京",), "中国的首都是北京市", "中国的首都是MASK市"),
        (("Lima",), "nothing here", "nothing here"),
    ],
)
def test_gold_answers_are_masked_as_whole_words(answers: tuple[str, ...], text: str, masked: str) -> None:
    assert mask_answers(text, asked(*answers)) == masked


def test_for_multiple_choice_the_gold_option_is_masked() -> None:
    question = asked("B", form="choice", grading="option", options=("Lima", "Quito"))
    assert mask_answers("B: Quito, not Lima", question) == "B: MASK, not Lima"
