"""Answers made elsewhere on their way into the store, and what was met on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kbtrain.labeling.stated import Stated
from kbtrain.questions.data_sets.answered import Answered
from kbtrain.records import Condition, GateScore, Question, SampleSet
from kbtrain.store import SampleStore

BATCH = 500  # question-conditions made durable at once


@dataclass
class Imported:
    """What an import has met so far: splits, the file's verdicts beside our grading, other gates' scores."""

    splits: Counter[str] = field(default_factory=Counter)
    graded: dict[Condition, Stated] = field(default_factory=dict)
    scores: list[GateScore] = field(default_factory=list)

    def into(self, store: SampleStore, run: str, rows: Iterable[Answered]) -> Iterator[Question]:
        """The rows' questions; their answers are stored, but for those that an interrupted import has stored."""
        done = store.done(run)
        waiting: list[SampleSet] = []
        for row in rows:
            self._count(row)
            waiting += [made for made in row.sample_sets() if (made.question_id, made.condition) not in done]
            if len(waiting) >= BATCH:
                store.put(run, waiting)
                waiting = []
            yield row.question
        store.put(run, waiting)

    def _count(self, row: Answered) -> None:
        self.splits[row.question.split] += 1
        self.scores += row.gate_scores()
        for condition, answer in row.answers.items():
            self.graded.setdefault(condition, Stated()).add(row.question, answer, row.stated.get(condition))

    def as_dict(self) -> dict[str, Any]:
        """For the meta data."""
        graded = {condition: dict(vars(found)) for condition, found in self.graded.items()}
        return {"splits": dict(self.splits), "scores": Counter(s.gate for s in self.scores), "graded": graded}

    def lines(self) -> list[str]:
        """For people: one line a condition, then splits and scores."""
        splits = ", ".join(f"{split} {self.splits[split]}" for split in ("train", "dev", "test"))
        scores = ", ".join(f"{gate} {n}" for gate, n in self.as_dict()["scores"].items()) or "none"
        return [*(found.line(condition) for condition, found in self.graded.items()),
                f"{self.splits.total()} questions ({splits}), scores: {scores}"]  # fmt: skip
