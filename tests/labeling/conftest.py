"""Questions and answers for the labels."""

import pytest

from kbtrain.records import Question, Sample, SampleSet


@pytest.fixture
def capital():
    return Question("q1", "What is the capital of France?", ("Paris",), "train", "atlas", relation="capital")


@pytest.fixture
def choice():
    return Question(
        "q2", "Where is Kenya?", ("B",), "train", "atlas", form="choice", grading="option",
        options=("Asia", "Africa", "Europe"),
    )  # fmt: skip


@pytest.fixture
def answered():
    def build(*answers, condition="llm", greedy=None, question="q1"):
        samples = tuple(Sample(i, text, 2, "eos", -1.0) for i, text in enumerate(answers))
        return SampleSet(
            question, condition, samples, None if greedy is None else Sample(-1, greedy, 2, "eos", -1.0), 20
        )

    return build
