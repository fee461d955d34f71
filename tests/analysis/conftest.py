"""Questions with answers for the analyses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbtrain.records import Condition, Question, Sample, SampleSet
from kbtrain.report.tallies import GradedAnswers


@pytest.fixture
def capital() -> Question:
    return Question("q1", "What is the capital of France?", ("Paris",), "train", "atlas")


@pytest.fixture
def answered() -> Callable[..., SampleSet]:
    def build(
        *answers: str, condition: Condition = "llm", greedy: str | None = None, question: str = "q1", cut: int = 0
    ) -> SampleSet:
        samples = tuple(Sample(i, text, 2, "eos", -1.0) for i, text in enumerate(answers))
        best = None if greedy is None else Sample(-1, greedy, 2, "eos", -1.0)
        return SampleSet(question, condition, samples, best, 20, cut)

    return build


@pytest.fixture
def graded() -> Callable[[str], GradedAnswers]:
    """From letters: capitals are right, small ones wrong, equal letters one group, ? an abstention."""

    def build(letters: str) -> GradedAnswers:
        return GradedAnswers(tuple(None if c == "?" else c.isupper() for c in letters), tuple(letters))

    return build
