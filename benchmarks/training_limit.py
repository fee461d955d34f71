"""The least time an epoch of full fine-tuning can take on a machine: what its products cost at the rate measured there.

Counted is what no exact method can leave out: each token three times through the model's matrices (forward, gradients
of inputs and of weights), attention of each token to all before it three times, the output head for the answers'
tokens. Norms, activations, rounding to 16 bits and the optimiser are granted for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

ROWS = 2048  # tokens of the products whose rate is measured


def operations(model: Any, lengths: Sequence[int], answer_tokens: int) -> dict[str, float]:
    """Floating-point operations of an epoch over rows of these lengths, by part."""
    config, head = model.config.get_text_config(), model.get_output_embeddings()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = config.num_hidden_layers * config.num_attention_heads * size
    body = sum(outer * inner * count for (outer, inner), count in shapes(model).items())
    return {
        "body": 6 * body * sum(lengths),
        "attention": sum(6 * width * length * (length + 1) for length in lengths),
        "head": 6 * head.weight.numel() * answer_tokens,
    }


def least_seconds(model: Any, lengths: Sequence[int], answer_tokens: int, dtype: str) -> float:
    """Measured now, with this process's threads, for the model's own matrices (2,048 tokens) in ``dtype``."""
    import torch
    from peers.machine import rate

    with torch.inference_mode():
        measured = rate(shapes(model), ROWS, {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype])
    return sum(operations(model, lengths, answer_tokens).values()) / measured


def shapes(model: Any) -> Counter[tuple[int, int]]:
    """How many linear layers of each (outer, inner) there are, the head left out."""
    import torch

    head = model.get_output_embeddings()
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear) and module is not head]
    return Counter((layer.out_features, layer.in_features) for layer in layers)
