"""The card of gates that are an untrained model's own signals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from kbtrain.errors import UserError
from kbtrain.gate.card import GateCard
from kbtrain.gate.gate import Gate
from kbtrain.records import Statistic


class UntrainedCard(GateCard):
    """``signal``: the one that decides; all others of the kind come from the same pass."""

    STATISTICS: ClassVar[Mapping[str, Statistic]] = {}  # by signal
    ABSENT = frozenset({"label_rule"})
    NO_SCORE = frozenset({"thresholds", "run"})
    base_model: str
    dtype: str
    prompt_fingerprint: str
    signal: str

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


def check_signal(signal: str, signals: tuple[str, ...]) -> None:
    """Raise :class:`UserError` for a signal that the kind does not have."""
    if signal not in signals:
        raise UserError(f"key 'signal': unknown '{signal}'; valid: {', '.join(signals)}")
