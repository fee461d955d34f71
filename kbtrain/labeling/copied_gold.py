"""Gold answers that repeat, word for word, what a model answered to the same question.

An answer that a person approved of (a thumb up) judges the condition that showed it. As a gold answer it makes that
condition right on every such question, and the other one wrong wherever its words differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from kbtrain.records import Condition, Question

LEAST = 10  # questions from which on a share says something
MANY = 0.9  # share of copies from which on the gold answers are taken for the model's own


@dataclass
class CopiedGold:
    """Counts over open questions with gold answers: ``n``, those with a copy, and copies by condition."""

    n: int = 0
    copied: int = 0
    by_condition: Counter[Condition] = field(default_factory=Counter)

    def add(self, question: Question, answers: Mapping[Condition, str]) -> None:
        """Count one question with the greedy answers to it; case, signs and inner spaces count."""
        if question.grading == "option" or not question.answers or not answers:
            return
        golds = {gold.strip() for gold in question.answers}
        copies = [condition for condition, answer in answers.items() if answer.strip() in golds]
        self.n += 1
        self.copied += bool(copies)
        self.by_condition.update(copies)

    def problem(self) -> str | None:
        """A sentence where at least :data:`MANY` of the gold answers are copies; else None."""
        if self.n < LEAST or self.copied < MANY * self.n:
            return None
        each = ", ".join(f"{condition} {n}" for condition, n in self.by_condition.most_common())
        return (
            f"{self.copied} of {self.n} accepted answers are word for word the model's own ({each}): that condition "
            "is right by construction, and the other one wrong wherever its words differ"
        )
