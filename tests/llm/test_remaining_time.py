"""The remaining time of a sampling follows from the tokens that are left, not from the share of finished questions."""

from __future__ import annotations

import pytest

from kbtrain.llm.base import AnswerRequest
from kbtrain.llm.forecast import RemainingTime
from kbtrain.records import GREEDY, Question, Sample, SampleSet


def request(number: int, n: int, letters: int) -> AnswerRequest:
    return AnswerRequest(Question(f"q{number}", "x" * letters, ("Peru",), "train", "t"), "llm", None, n)


def answered(request: AnswerRequest, tokens: int) -> SampleSet:
    drawn = tuple(Sample(i, "Peru", tokens, "eos", -1.0) for i in range(request.n))
    return SampleSet(request.question.id, request.condition, drawn, Sample(GREEDY, "Peru", tokens, "eos", -1.0), 9)


def test_the_time_left_is_that_of_the_tokens_left() -> None:
    now = [100.0]
    many, one = [request(i, 9, 400) for i in range(4)], [request(i, 0, 40) for i in range(4, 40)]
    remaining = RemainingTime([*many, *one], lambda: now[0])
    now[0] += 50  # the model is opened
    assert remaining.seconds() is None
    remaining.start()
    now[0] += 10
    remaining.add([answered(many[0], 8)])
    assert remaining.seconds() is None  # below a twentieth of the prompts
    remaining.add([answered(many[1], 12)])
    # done: 2 prompts of 100 tokens and 200 drawn ones; left: 2 and 36 of 10, with 20 and 36 answers of 10
    assert remaining.seconds() == pytest.approx(10 * (200 + 360 + 200 + 360) / (200 + 200))
    now[0] += 10
    assert remaining.seconds() == pytest.approx(56)
    remaining.add([answered(r, 10) for r in (*many[2:], *one)])
    assert remaining.seconds() == 0
