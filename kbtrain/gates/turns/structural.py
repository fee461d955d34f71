"""Structural gate: logistic regression on ten numbers about the context, no words and nothing about the future."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from kbtrain.gate.card import GateCard
from kbtrain.gate.gate import Gate, Reads, logistic
from kbtrain.gates.turns.dialogue_state import labelled_turns
from kbtrain.records import TurnExample

FEATURES = (
    "turn",
    "log_turn",
    "words_last",
    "words_context",
    "question_last",
    "question_before",
    "capitals_last",
    "numbers_last",
    "services_so_far",
    "new_service",
)


def structure(example: TurnExample) -> list[float]:
    """The :data:`FEATURES` of a turn, from its context alone.

    ``turn`` counts from the dialogue's beginning (how long it will be is not known yet); capitals are capitalised
    words but the first; ``new_service``: the last utterance names a service that no earlier one named.
    """
    last, before = example.context[-1], example.context[:-1]
    words = last.text.split()
    named = {service for utterance in before for service in utterance.services}
    return [
        float(example.turn),
        math.log1p(example.turn),
        float(len(words)),
        float(sum(len(utterance.text.split()) for utterance in example.context)),
        float("?" in last.text),
        float(bool(before) and "?" in before[-1].text),
        float(sum(word[:1].isupper() for word in words[1:])),
        float(sum(any(c.isdigit() for c in word) for word in words)),
        float(len(example.services)),
        float(bool(set(last.services) - named)),
    ]


Numbers = Annotated[list[float], Field(min_length=len(FEATURES), max_length=len(FEATURES))]


class StructuralCard(GateCard):
    """The whole gate, in ``gate.json``: of each of the :data:`FEATURES` mean, scale and coefficient (log odds)."""

    ABSENT = frozenset({"base_model", "label_rule", "versions"})
    USES_MODEL = False
    kind: Literal["structural"] = "structural"
    mean: Numbers
    scale: Numbers
    coefficients: Numbers
    intercept: float


class StructuralGate(Gate):
    """Score = p(retrieval needed) in [0, 1] with both classes weighed alike."""

    name = "structural"
    reads: frozenset[Reads] = frozenset({"turn"})
    unit = "probability"

    def __init__(self, card: StructuralCard) -> None:
        self.card: StructuralCard = card

    @classmethod
    def fit(cls, examples: Sequence[TurnExample], need: Sequence[float] | None = None) -> StructuralGate:
        """Learn from labelled turns (scikit-learn, L2 with C = 1). Raises :class:`UserError` for a single class."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        turns, labels = labelled_turns("structural", examples, need)
        scaler = StandardScaler().fit([structure(example) for example in turns])
        model = LogisticRegression(class_weight="balanced", max_iter=1000)
        model.fit(scaler.transform([structure(example) for example in turns]), labels)
        card = StructuralCard(
            mean=scaler.mean_.tolist(),
            scale=scaler.scale_.tolist(),
            coefficients=model.coef_[0].tolist(),
            intercept=float(model.intercept_[0]),
            run={"turns": len(turns), "positive": sum(labels)},
        )
        return cls(card)

    def score_examples(self, examples: Sequence[TurnExample]) -> list[float]:
        return [self._score(structure(example)) for example in examples]

    def _score(self, values: list[float]) -> float:
        card = self.card
        parts = zip(values, card.mean, card.scale, card.coefficients, strict=True)
        return logistic(card.intercept + math.fsum(c * (value - mean) / scale for value, mean, scale, c in parts))

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> StructuralGate:
        """Open a folder; ``dtype`` and ``device`` are for gates with a model. Raises :class:`UserError`."""
        return cls(StructuralCard.read(folder))
