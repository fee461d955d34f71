"""P(an utterance needs knowledge): a logistic regression on the sentence encoder, for what the rules do not match.

The weights come with the package (1.5 KB). ``tools/fit_needs_knowledge.py`` fits them to turns of SGD, to questions of
the atlas and to a list that was written for it. The encoder reads English.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np
from safetensors.numpy import load, save_file

from kbtrain.gate.gate import logistic
from kbtrain.gates.encoder.probe import ENCODER, MAX_LENGTH, mean_states, token_ids
from kbtrain.models.encoders import open_body, pad_id

WEIGHTS = "needs_knowledge.safetensors"


class NeedsKnowledge:
    """The head and its encoder, which is opened at once."""

    def __init__(self, weights: np.ndarray, intercept: float) -> None:
        self.weights, self.intercept = weights, intercept
        self._encoder = open_body(ENCODER, "auto", "cpu")

    @classmethod
    def load(cls) -> NeedsKnowledge:
        """The head that comes with the package."""
        tensors = load(resources.files("kbtrain.gates.encoder").joinpath(WEIGHTS).read_bytes())
        return cls(tensors["weights"], float(tensors["intercept"][0]))

    def probabilities(self, texts: Sequence[str]) -> list[float]:
        """P(needs knowledge) of each text."""
        return [logistic(self.intercept + float(value)) for value in self.embed(texts) @ self.weights]

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """(texts, size): mean states of the encoder."""
        model, tokenizer = self._encoder
        return mean_states(model, token_ids(tokenizer, texts, MAX_LENGTH), pad_id(tokenizer))

    def save(self, path: Path) -> None:
        """Write the head."""
        tensors = {"weights": self.weights.astype(np.float32), "intercept": np.array([self.intercept], np.float32)}
        save_file(tensors, path)
