"""The card of gates that are an untrained model's own signals, and those of them whose model is served."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import field_validator

from kbtrain.errors import UserError, at
from kbtrain.gate.card import GateCard
from kbtrain.gate.gate import Gate
from kbtrain.gates.answering import OTHER_PROMPTS, ServedGate, check_served_prompts
from kbtrain.prompts.own import asked_fingerprint
from kbtrain.records import Statistic

if TYPE_CHECKING:
    from kbtrain.llm.served_states import StatesServer


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


class ServedUntrained(ServedGate, UntrainedGate):
    """``signal``: the one that vLLM's log-probabilities give: of the two most probable tokens, and of a token that it
    is made to draw. Others need whole distributions or states. ``fingerprint``: of the prompts that the model reads."""

    card_type: ClassVar[type[UntrainedCard]]
    signal: ClassVar[str]
    fingerprint = staticmethod(asked_fingerprint)


def load_served(gate: type[ServedUntrained], folder: Path, server: StatesServer) -> UntrainedGate:
    """Open a folder of ``draft`` or ``p_yes`` whose model is served.

    Raises :class:`UserError` for a signal that cannot be read so, other prompts than its threshold was chosen with, and
    a server with another chat template.
    """
    card = gate.card_type.read(folder)
    if card.signal != gate.signal:
        raise UserError(
            f"{at(folder)}: signal '{card.signal}' cannot be read from a server; make the gate with signal "
            f"'{gate.signal}', or open the model here"
        )
    check_served_prompts(card, folder, server, gate.fingerprint)
    return gate(server, card)
