"""Offset of an encoder's logit: log odds of the dialogue-state gate, so that the encoder learns only the remainder.

The encoder's logit is added to ``intercept + slope x log odds`` in training and in scoring, as boosting adds a model to
the one before it. A gate is too sure of the turns it was fitted to: training turns are given the log odds of a gate
fitted without their part of the dialogues (cross-fitting), all other turns those of the gate fitted to all.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from kbtrain.errors import UserError, at
from kbtrain.gates.turns.dialogue_state import DialogueStateCard, DialogueStateGate
from kbtrain.io.files import path_exists
from kbtrain.io.jsonl import read_model
from kbtrain.io.provenance import write_atomically
from kbtrain.records import Example, TurnExample

BASE = "base.json"
FOLDS = 10


class OffsetGate(BaseModel):
    """``intercept`` and ``slope`` fit the held-out log odds of ``gate`` to the labels, weighed as the encoder's loss
    weighs them: an encoder that adds nothing is at the best loss the base alone can have. Plain numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["dialogue_state"] = "dialogue_state"
    intercept: float
    slope: float
    gate: DialogueStateCard

    @classmethod
    def fit(
        cls, turns: Sequence[TurnExample], weights: tuple[float, float], folds: int = FOLDS
    ) -> tuple[OffsetGate, list[float]]:
        """The base and the training turns' own offsets, in their order; ``weights``: of (negative, positive) turns.

        Every turn has a label. Raises :class:`UserError` for too few dialogues, a single class, or a base that tells
        nothing about turns it was not fitted to.
        """
        from sklearn.linear_model import LogisticRegression

        held_out = _held_out(turns, folds)
        labels = [int(bool(turn.label)) for turn in turns]
        line = LogisticRegression(max_iter=1000)  # its weak penalty bounds the slope where the classes come apart
        line.fit([[value] for value in held_out], labels, sample_weight=[weights[label] for label in labels])
        slope, intercept = float(line.coef_[0][0]), float(line.intercept_[0])
        if slope <= 0:
            raise UserError(
                f"base 'dialogue_state': on {len(turns)} training turns that it was not fitted to, it is not better "
                "than chance; remove the key 'base'"
            )
        base = cls(intercept=intercept, slope=slope, gate=DialogueStateGate.fit(turns).card)
        return base, [intercept + slope * value for value in held_out]

    def offsets(self, examples: Sequence[Example]) -> list[float]:
        """Term added to each example's logit. Raises :class:`UserError` for questions."""
        gate = DialogueStateGate(self.gate)
        return [self.intercept + self.slope * gate.log_odds(turn) for turn in turns_only(examples)]

    def save(self, folder: Path) -> None:
        """Write the folder's ``base.json``."""
        write_atomically(folder / BASE, self.model_dump_json(indent=1) + "\n")

    @staticmethod
    def load(folder: Path) -> OffsetGate:
        """Raises :class:`UserError` for a missing or broken file."""
        if not path_exists(folder / BASE):
            raise UserError(f"{at(folder / BASE)}: no such file; the gate adds to its base, copy the whole folder")
        return read_model(folder / BASE, OffsetGate)


def turns_only(examples: Sequence[Example]) -> list[TurnExample]:
    """The examples, all of them dialogue turns. Raises :class:`UserError` otherwise."""
    turns = [example for example in examples if isinstance(example, TurnExample)]
    if len(turns) < len(examples):
        other = next(example for example in examples if not isinstance(example, TurnExample))
        raise UserError(f"example '{other.id}': base 'dialogue_state' reads dialogue turns; leave the key 'base' out")
    return turns


def _held_out(turns: Sequence[TurnExample], folds: int) -> list[float]:
    """Log odds of each turn by a gate fitted to the dialogues of the other folds."""
    from sklearn.model_selection import GroupKFold

    dialogues = [turn.dialogue_id for turn in turns]
    if len(set(dialogues)) < 2:
        raise UserError(f"base 'dialogue_state': {len(set(dialogues))} dialogue to train on, needs two at least")
    log_odds = [0.0] * len(turns)
    for fit, rest in GroupKFold(min(folds, len(set(dialogues)))).split(turns, groups=dialogues):
        gate = DialogueStateGate.fit([turns[i] for i in fit])
        for i in rest:
            log_odds[i] = gate.log_odds(turns[i])
    return log_odds
