"""Sets of made-up answers; light, for scripts of tests that are started and killed many times."""

from __future__ import annotations

from kbtrain.records import Condition, Sample, SampleSet


def made(
    question: str, condition: Condition = "llm", n: int = 3, greedy: bool = True, text: str = "Zürich 苏黎世\n"
) -> SampleSet:
    samples = tuple(Sample(i, f"{text}{i}", 4 + i, "stop", -0.1 * i) for i in range(n))
    return SampleSet(question, condition, samples, Sample(-1, text, 3, "eos", -1 / 3) if greedy else None, 41, 7)
