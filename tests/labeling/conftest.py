"""Questions and answers for the labels."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbtrain.records import Condition, Question, Sample, SampleSet


@pytest.fixture
def capital() -> Question:
    return Question("q1", "What is the capital of France?", ("Paris",), "train", "atlas", relation="capital")


@pytest.fixture
def choice() -> Question:
    return Question(
        "q2", "Where is Kenya?", ("B",), "train", "atlas", form="choice", grading="option",
        options=("Asia", "Africa", "Europe"),
    )  # fmt: skip


@pytest.fixture
def answered() -> Callable[..., SampleSet]:
    def build(
        *answers: str, condition: Condition = "llm", greedy: str | None = None, question: str = "q1"
    ) -> SampleSet:
        samples = tuple(Sample(i, text, 2, "eos", -1.0) for i, text in enumerate(answers))
        return SampleSet(
            question, condition, samples, None if greedy is None else Sample(-1, greedy, 2, "eos", -1.0), 20
        )

    return build
