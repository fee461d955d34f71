"""Several gates as one: the mean of their log odds. Gates that err in different places do better together."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from kbtrain.errors import UserError, at
from kbtrain.gate_folder import CARD, Threshold, load_gate, read_json
from kbtrain.gates.turns.dialogue_state import probability
from kbtrain.jsonl import one_line
from kbtrain.provenance import write_atomically

_FLOOR = 1e-9  # a probability of exactly 0 or 1 would silence the other gates


class AverageCard(BaseModel):
    """The content of ``gate.json``: ``members`` are other gates' folders, as seen from this one."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = 1
    kind: Literal["average"] = "average"
    members: tuple[str, ...]
    thresholds: dict[str, Threshold] = {}


class AverageGate:
    """Score = sigmoid of the mean of the members' log odds, in (0, 1); each member's score must be a probability."""

    name = "average"
    needs_samples = False

    def __init__(self, gates: Sequence[Any], card: AverageCard | None = None) -> None:
        self.gates = list(gates)
        self.card = card
        self.needs_evidence = any(gate.needs_evidence for gate in gates)

    @property
    def cut(self) -> int:
        """Turns that its members left out of contexts that were too long, summed."""
        return sum(getattr(gate, "cut", 0) for gate in self.gates)

    def score(self, examples: Sequence[Any]) -> list[float]:
        """One score per example, in their order. Raises :class:`UserError` for a member that gives no probability."""
        return mean_log_odds([gate.score(examples) for gate in self.gates], [gate.name for gate in self.gates])

    @classmethod
    def of(cls, folder: Path | str, members: Sequence[Path], dtype: str = "auto", device: str = "auto") -> AverageGate:
        """A gate of these folders' gates, its own folder written. Raises :class:`UserError` for fewer than two."""
        if len(members) < 2:
            raise UserError(f"gate 'average': {len(members)} members, needs two at least; name their folders")
        gates = [load_gate(member, dtype, device) for member in members]
        card = AverageCard(members=tuple(Path(os.path.relpath(member, folder)).as_posix() for member in members))
        Path(folder).mkdir(parents=True, exist_ok=True)
        text = json.dumps(card.model_dump(mode="json"), ensure_ascii=False, indent=1)
        write_atomically(Path(folder) / CARD, text + "\n")
        return cls(gates, card)

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> AverageGate:
        """Open a folder and its members'. Raises :class:`UserError`."""
        card = read_average_card(folder)
        return cls([load_gate(Path(folder) / member, dtype, device) for member in card.members], card)


def read_average_card(folder: Path | str) -> AverageCard:
    """Raises :class:`UserError` for a folder that holds no such gate, or a broken one."""
    try:
        return AverageCard.model_validate(read_json(folder))
    except ValidationError as error:
        raise UserError(f"{at(Path(folder) / CARD)}: {one_line(error)}") from None


def mean_log_odds(scores: Sequence[Sequence[float]], names: Sequence[str]) -> list[float]:
    """Of each example; ``scores`` by gate, ``names`` for the error."""
    for name, of_gate in zip(names, scores, strict=True):
        if not all(0 <= score <= 1 for score in of_gate):
            raise UserError(f"gate 'average': the scores of '{name}' are no probabilities; leave it out")
    means = [math.fsum(map(_log_odds, row)) / len(row) for row in zip(*scores, strict=True)]
    return [probability(mean) for mean in means]


def _log_odds(p: float) -> float:
    clipped = min(max(p, _FLOOR), 1 - _FLOOR)
    return math.log(clipped) - math.log1p(-clipped)
