"""What a model says where it is least certain: the answer groups of a few questions."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field

from kbtrain.answers.mask import gold_texts
from kbtrain.prompts.kbm import query_text
from kbtrain.records import Question, SampleSet
from kbtrain.report.analysis.graded import GradedAnswers

SHOWN = 6  # groups of a question


@dataclass(frozen=True)
class Group:
    """Answers that count as the same; ``text`` is the first spelling. ``right`` None: a judge abstained."""

    text: str
    times: int
    right: bool | None


@dataclass(frozen=True)
class Spread:
    """One question's answers without retrieval: the largest groups, and how many groups there are in all."""

    question_id: str
    question: str
    gold: str
    certainty: float
    n_answers: int
    n_groups: int
    groups: tuple[Group, ...]


@dataclass
class LeastCertain:
    """Keeps the ``size`` questions with the lowest certainty; equal ones by question id."""

    size: int
    _heap: list[tuple[float, tuple[int, ...], Spread]] = field(default_factory=list)

    def add(self, question: Question, made: SampleSet, answers: GradedAnswers) -> None:
        """One question under ``llm``."""
        value = answers.certainty
        if value is None or self.size < 1:
            return
        # the heap's top is the first to go: the highest certainty, then the last id
        key = (-value, tuple(-ord(char) for char in question.id))
        if len(self._heap) < self.size:
            heapq.heappush(self._heap, (*key, spread(question, made, answers, value)))
        elif key > self._heap[0][:2]:
            heapq.heapreplace(self._heap, (*key, spread(question, made, answers, value)))

    def found(self) -> list[Spread]:
        """Least certain first."""
        return [made for _, _, made in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]


def spread(question: Question, made: SampleSet, answers: GradedAnswers, certainty: float) -> Spread:
    """The answer groups of a question, largest first, equal ones by their key."""
    sizes = Counter(answers.group)
    order = sorted(sizes, key=lambda group: (-sizes[group], group))
    first = {group: i for i, group in reversed(list(enumerate(answers.group)))}
    groups = tuple(
        Group(made.samples[first[group]].text.strip(), sizes[group], answers.right[first[group]])
        for group in order[:SHOWN]
    )
    gold = " / ".join(gold_texts(question))
    return Spread(question.id, query_text(question), gold, certainty, len(answers), len(sizes), groups)
