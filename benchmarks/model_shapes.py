"""The sizes of a causal model's products, from which its operations are counted."""

from __future__ import annotations

from collections import Counter
from typing import Any


def body_shapes(model: Any) -> Counter[tuple[int, int]]:
    """How many linear layers of each (outer, inner) there are, the output head skipped."""
    import torch

    head = model.get_output_embeddings()
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear) and module is not head]
    return Counter((layer.out_features, layer.in_features) for layer in layers)


def parameters(shapes: Counter[tuple[int, int]]) -> int:
    """Entries of all of these together."""
    return sum(outer * inner * count for (outer, inner), count in shapes.items())


def attention_width(config: Any) -> int:
    """Layers x heads x head size."""
    return int(config.num_hidden_layers * config.num_attention_heads * head_size(config))


def head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
