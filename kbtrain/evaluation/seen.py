"""Counts of evaluated questions that a gate knew from its training, as score files note them, for every table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any


@dataclass(frozen=True)
class Seen:
    """Of the test questions ``questions`` were trained on, and ``entities`` others share an entity (turns: a dialogue)
    with the training; ``dev_*``: the same of the dev questions, which choose the threshold."""

    questions: int = 0
    entities: int = 0
    dev_questions: int = 0
    dev_entities: int = 0

    def __add__(self, other: Seen) -> Seen:
        return Seen(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def mark(self) -> str:
        """Behind a gate's name in a table; empty where nothing was seen."""
        counts = (("", self.questions, self.entities), ("of dev ", self.dev_questions, self.dev_entities))
        parts = [f"{of}{same} questions, {near} by entity" for of, same, near in counts if same or near]
        return f" (in training: {'; '.join(parts)})" if parts else ""


NOTHING = Seen()


def seen_of(meta: Mapping[str, Any], gate: str) -> Seen:
    """``meta``: of a run's scores (``StoredScores``) or of one score file."""
    test, dev = (meta.get("seen", {}).get(gate, {}).get(split, {}) for split in ("test", "dev"))
    counts = (test.get("questions", 0), test.get("entities", 0), dev.get("questions", 0), dev.get("entities", 0))
    return Seen(*counts)
