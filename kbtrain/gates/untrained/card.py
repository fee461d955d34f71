"""The card of gates that are an untrained model's own signals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import field_validator

from kbtrain.gate.card import GateCard
from kbtrain.gate.gate import Gate
from kbtrain.gates.answering import OTHER_PROMPTS
from kbtrain.records import Statistic


class UntrainedCard(GateCard):
    """``signal``: the one that decides; all others of the kind come from the same pass."""

    SIGNALS: ClassVar[tuple[str, ...]]
    STATISTICS: ClassVar[Mapping[str, Statistic]] = {}  # by signal
    OTHER_PROMPTS = OTHER_PROMPTS
    ABSENT = frozenset({"label_rule"})
    NO_SCORE = frozenset({"thresholds", "run"})
    base_model: str
    dtype: str
    prompt_fingerprint: str
    signal: str

    @field_validator("signal")
    @classmethod
    def _check_signal(cls, signal: str) -> str:
        if signal not in cls.SIGNALS:
            raise ValueError(f"unknown '{signal}'; valid: {', '.join(cls.SIGNALS)}")
        return signal

    def names(self) -> tuple[str, ...]:
        """Every signal: all come from one pass."""
        return self.SIGNALS

    def answering_models(self) -> tuple[str, ...]:
        """The model whose signals are read."""
        return (self.base_model,)

    @property
    def statistics(self) -> frozenset[Statistic]:
        """That of the signal."""
        return frozenset({self.STATISTICS[self.signal]} if self.signal in self.STATISTICS else ())


class UntrainedGate(Gate):
    """A gate whose card names the signal that decides."""

    card: UntrainedCard

    @property
    def name(self) -> str:
        """The signal that decides."""
        return self.card.signal
