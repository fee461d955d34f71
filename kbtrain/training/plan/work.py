"""Steps, tokens, operations and hours of a training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Work:
    """``operations``: multiplications and additions of all devices; ``tokens`` of all epochs, padding not counted."""

    examples: int
    steps: int
    tokens: int
    operations: float

    def hours(self, rate: float, devices: int) -> float:
        """``rate``: operations a second that one device reaches in training."""
        return self.operations / (rate * devices) / 3600


def work(
    config: Any,
    parameters: int,
    examples: int,
    mean_tokens: float,
    epochs: float,
    rows_a_step: int,
    *,
    full: bool,
    checkpointing: bool,
) -> Work:
    """Two operations a weight and token forward, two for the gradient of the input, two for that of the weight.

    Frozen weights have no gradient of their own; checkpointing computes forward twice. Attention's products are
    counted over half the square (causal); embedding and output layer are not (a few positions have logits).
    """
    text = config.get_text_config()
    outside = text.vocab_size * text.hidden_size * (1 if text.tie_word_embeddings else 2)
    tokens = round(examples * mean_tokens * epochs)
    passes = (2 if full else 1) + 1 + int(checkpointing)
    linear = 2.0 * (parameters - outside) * tokens
    heads = text.num_attention_heads * (getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
    attention = 2.0 * mean_tokens * heads * text.num_hidden_layers * tokens
    steps = math.ceil(math.ceil(examples / rows_a_step) * epochs)
    return Work(examples, steps, tokens, passes * linear + (3 + int(checkpointing)) * attention)
