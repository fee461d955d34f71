"""Sets of made-up answers, and a run folder to be sampled; light, for scripts that are started and killed often."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.records import Condition, Evidence, Hit, Question, Sample, SampleSet


def made(
    question: str, condition: Condition = "llm", n: int = 3, greedy: bool = True, text: str = "Zürich 苏黎世\n"
) -> SampleSet:
    samples = tuple(Sample(i, f"{text}{i}", 4 + i, "stop", -0.1 * i) for i in range(n))
    return SampleSet(question, condition, samples, Sample(-1, text, 3, "eos", -1 / 3) if greedy else None, 41, 7)


def towns(folder: Path, n: int, answer: str = "Peru") -> Path:
    """The folder with ``n`` questions of unequal length, by turns of train and test, and one passage for each."""
    questions = [
        Question(
            f"q{i}", f"Where is town {i}{' and so' * (i % 5)}?", (answer.format(i),), ("train", "test")[i % 2], "t"
        )
        for i in range(n)
    ]
    hits = (Hit("p", "T", "The town is in Peru.", 1.0),)
    jsonl.write(folder / "questions.jsonl", questions)
    jsonl.write(folder / "evidence.jsonl", [Evidence(q.id, "bm25", q.text, hits) for q in questions])
    return folder


def stored_rows(path: Path) -> list[tuple[object, ...]]:
    """Everything in a store that a stage reads, in a fixed order."""
    with SampleStore(path, read_only=True) as store:
        return sorted(dataclasses.astuple(one) for one in store.iterate("main"))
