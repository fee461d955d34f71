"""The prompting baseline (KBM, section 4.2): p(True) that the untrained model needs more information."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbtrain.gate.gate import Gate
from kbtrain.gates.tree_scorer import Scorer
from kbtrain.gates.true_false import NEED_TEMPLATE, Encoder
from kbtrain.records import GateExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class PromptGate(Gate):
    """Score = p(need: True) against p(need: False) in [0, 1] at the value position; it reads no reference."""

    name = "prompt"
    unit = "probability"

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int = 2048) -> None:
        self.scorer = Scorer(model, Encoder(tokenizer, NEED_TEMPLATE, max_length))
        self.spent = self.scorer.spent

    @classmethod
    def load(cls, model: str, dtype: str = "auto", device: str = "auto") -> PromptGate:
        """Open a model by embedded name, folder or hub id. Raises :class:`UserError`."""
        from kbtrain.models.load import load_model

        return cls(*load_model(model, dtype, device))

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        return self.scorer.probabilities(examples)["need"]
