"""The least time an epoch of full fine-tuning can take on a machine: what its products cost at the rate measured there.

Counted is what no exact method can skip: each token three times through the model's matrices (forward, gradients
of inputs and of weights), what the rows of a step begin with once for all of them; attention of each token to all
before it three times; the output head for the answers' tokens. Norms, activations, rounding to 16 bits and the
optimiser are granted for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from model_shapes import attention_width, body_shapes, parameters

ROWS = 2048  # tokens of the products whose rate is measured


def operations(model: Any, lengths: Sequence[int], answer_tokens: int, shared: int = 0) -> dict[str, float]:
    """Floating-point operations of an epoch over rows of these lengths, by part; ``shared``: tokens of these that
    stand in another row of their step, too.
    """
    width, head = attention_width(model.config.get_text_config()), model.get_output_embeddings()
    return {
        "body": 6 * parameters(body_shapes(model)) * (sum(lengths) - shared),
        "attention": sum(6 * width * length * (length + 1) for length in lengths),
        "head": 6 * head.weight.numel() * answer_tokens,
    }


def least_seconds(model: Any, lengths: Sequence[int], answer_tokens: int, dtype: str, shared: int = 0) -> float:
    """Measured now, with this process's threads, for the model's own matrices (2,048 tokens) in ``dtype``."""
    import torch
    from peers.machine import rate

    with torch.inference_mode():
        measured = rate(body_shapes(model), ROWS, {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype])
    return sum(operations(model, lengths, answer_tokens, shared).values()) / measured
