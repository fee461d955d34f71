"""A gate that reads no words: logistic regression on ten numbers about what was said so far, none about the future."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from kbtrain.errors import UserError, at
from kbtrain.gates.turns.dialogue_state import LogisticTurnGate, labelled, probability
from kbtrain.jsonl import one_line
from kbtrain.provenance import write_atomically
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


class StructuralGate(LogisticTurnGate):
    """Score = p(retrieval needed) in [0, 1] with both classes weighed alike. Plain numbers: saved as JSON."""

    mean: list[float]
    scale: list[float]
    coefficients: list[float]
    intercept: float

    @property
    def name(self) -> str:
        """The name results are stored under."""
        return "structural"

    @classmethod
    def fit(cls, examples: Sequence[TurnExample]) -> StructuralGate:
        """Learn from labelled turns (scikit-learn, L2 with C = 1). Raises :class:`UserError` for a single class."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        known, labels = labelled("structural", examples)
        scaler = StandardScaler().fit([structure(example) for example in known])
        model = LogisticRegression(class_weight="balanced", max_iter=1000)
        model.fit(scaler.transform([structure(example) for example in known]), labels)
        return cls(
            mean=scaler.mean_.tolist(),
            scale=scaler.scale_.tolist(),
            coefficients=model.coef_[0].tolist(),
            intercept=float(model.intercept_[0]),
        )

    def score(self, examples: Sequence[TurnExample]) -> list[float]:
        """One score per turn, in their order."""
        return [self._score(structure(example)) for example in examples]

    def _score(self, values: list[float]) -> float:
        parts = zip(values, self.mean, self.scale, self.coefficients, strict=True)
        total = self.intercept + math.fsum(c * (value - mean) / scale for value, mean, scale, c in parts)
        return probability(total)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        write_atomically(path, json.dumps(self.model_dump(), indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> StructuralGate:
        """Raises :class:`UserError` for a missing or broken file."""
        try:
            return StructuralGate.model_validate_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{at(path)}: no such file") from None
        except ValidationError as error:
            raise UserError(f"{at(path)}: {one_line(error)}") from None
