"""A gate of another package: a card, a score, a fit and the line for the registry."""

from collections.abc import Sequence
from typing import Literal

from kbtrain.gate.card import GateCard
from kbtrain.gate.gate import Gate
from kbtrain.gates.registry import Kind
from kbtrain.records import GateExample


class LengthCard(GateCard):
    ABSENT = frozenset({"base_model"})
    kind: Literal["length"] = "length"
    slope: float


class Length(Gate):
    """Score = the question's length, turned so that it rises with the need of retrieval."""

    name = "length"
    broken = False

    def __init__(self, card: LengthCard) -> None:
        self.card = card

    @classmethod
    def fit(cls, examples: Sequence[GateExample], need: Sequence[float]) -> "Length":
        mean = sum(need) / len(need)
        sizes = [len(example.question) for example in examples]
        rises = sum(n * (value - mean) for n, value in zip(sizes, need, strict=True)) > 0
        return cls(LengthCard(slope=1.0 if rises else -1.0))

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        return [self.card.slope * len(example.question) for example in examples]


def opened(folder, dtype, device):
    card = LengthCard.read(folder)
    return Length(card.model_copy(update={"slope": 2.0}) if Length.broken else card)


KIND = Kind(LengthCard, opened, frozenset({"question"}), "recipes/fit_gate.py", fit=Length.fit)
