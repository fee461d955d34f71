"""How far a file's own verdicts on its answers agree with this project's grading: a cheap check of both."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbtrain.answers.grading import is_correct
from kbtrain.records import Condition, Question

SHOWN = 5


@dataclass
class Stated:
    """One condition: how often ours and theirs agree; of the others the numbers, and the first ids.

    ``ours_only``: right by our grading, wrong by theirs; ``theirs_only`` the reverse.
    """

    n: int = 0
    right: int = 0
    n_stated: int = 0
    ours_only: int = 0
    theirs_only: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, question: Question, answer: str, stated: bool | None) -> None:
        """Grade one answer; ``stated`` is the file's verdict, None where it has none."""
        right = is_correct(question, answer)
        self.n += 1
        self.right += right
        if stated is None:
            return
        self.n_stated += 1
        self.ours_only += right and not stated
        self.theirs_only += stated and not right
        if right != stated and len(self.first) < SHOWN:
            self.first.append(question.id)

    @property
    def agreed(self) -> int:
        """Answers on which both say the same."""
        return self.n_stated - self.ours_only - self.theirs_only

    def line(self, condition: Condition) -> str:
        """For people."""
        text = f"{condition}: {self.right} of {self.n} greedy answers right ({self.right / max(self.n, 1):.1%})"
        if not self.n_stated:
            return text
        return (f"{text}; the file's own verdict agrees in {self.agreed} of {self.n_stated} "
                f"({self.agreed / self.n_stated:.1%}; right by ours alone {self.ours_only}, by theirs alone "
                f"{self.theirs_only})")  # fmt: skip
