"""Mean of several gates' log odds: gates with different errors are better together."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from kbtrain.errors import UserError
from kbtrain.gate.card import GateCard
from kbtrain.gate.gate import ByName, Combination, Gate, logistic
from kbtrain.records import Example
from kbtrain.training.model_card import write_made

_FLOOR = 1e-9  # a probability of exactly 0 or 1 would silence the other gates
OpenMember = Callable[[Path], Gate]


class AverageCard(GateCard):
    """The content of ``gate.json``: ``members`` are other gates' folders, as seen from this one."""

    ABSENT = frozenset({"base_model", "label_rule", "run", "versions"})
    kind: Literal["average"] = "average"
    members: tuple[str, ...] = Field(min_length=1)

    def parts(self) -> tuple[str, ...]:
        """The members."""
        return self.members

    def of_members(self, scores: Sequence[ByName]) -> dict[str, list[float]]:
        """The score from those of each member, of which each has one. Raises :class:`UserError` as the gate does."""
        return {self.kind: mean_log_odds([pair for of_member in scores for pair in of_member.items()])}


class AverageGate(Combination):
    """Score = sigmoid of the mean of the members' log odds, in (0, 1); each member's score must be a probability.

    Of a member with several scores it reads the one that the member decides by. ``spent`` is the members' sum.
    """

    name = "average"
    unit = "probability"

    def __init__(self, gates: Sequence[Gate], card: AverageCard | None = None) -> None:
        super().__init__(gates)
        self.card: AverageCard | None = card

    @property
    def cut(self) -> int:
        """Turns that its members dropped from contexts that were too long, summed."""
        return sum(getattr(gate, "cut", 0) for gate in self.gates)

    def score_examples(self, examples: Sequence[Example]) -> list[float]:
        """One score per example, in their order. Raises :class:`UserError` for a member that gives no probability."""
        by_member = zip(self.gates, self.member_scores(examples), strict=True)
        return mean_log_odds([(gate.name, scores[gate.name]) for gate, scores in by_member])

    @classmethod
    def of_folders(
        cls, folder: Path, members: Sequence[Path], open_member: OpenMember
    ) -> tuple[AverageGate, AverageCard]:
        """The gate of these folders' gates, and its card for ``folder``. Raises :class:`UserError` for fewer than
        two."""
        if len(members) < 2:
            raise UserError(f"gate 'average': {len(members)} members, needs two at least; name their folders")
        card = AverageCard(members=tuple(Path(os.path.relpath(member, folder)).as_posix() for member in members))
        return cls([open_member(member) for member in members], card), card

    @classmethod
    def from_members(cls, folder: Path, members: Sequence[Path], open_member: OpenMember) -> AverageGate:
        """As :meth:`of_folders`, its own folder written."""
        gate, card = cls.of_folders(folder, members, open_member)
        folder.mkdir(parents=True, exist_ok=True)
        names = ", ".join(f"`{member.name}`" for member in gate.gates)
        what = f"The mean of the log odds of {names}. Score: p(retrieval needed) in [0, 1]; members lie beside it."
        write_made(folder, card, what, turns="question" not in gate.reads)
        return gate

    @classmethod
    def load(cls, folder: Path | str, open_member: OpenMember) -> AverageGate:
        """Open a folder and its members'. Raises :class:`UserError`."""
        card = AverageCard.read(folder)
        return cls([open_member(Path(folder) / member) for member in card.members], card)


def mean_log_odds(scores: Sequence[tuple[str, Sequence[float]]]) -> list[float]:
    """Of each example, as a probability; ``scores`` with their gates' names. Raises :class:`UserError` for others."""
    for name, of_gate in scores:
        if not all(0 <= score <= 1 for score in of_gate):
            raise UserError(f"gate 'average': the scores of '{name}' are no probabilities; leave it out")
    rows = zip(*(of_gate for _, of_gate in scores), strict=True)
    return [logistic(math.fsum(map(_log_odds, row)) / len(row)) for row in rows]


def _log_odds(p: float) -> float:
    clipped = min(max(p, _FLOOR), 1 - _FLOOR)
    return math.log(clipped) - math.log1p(-clipped)
