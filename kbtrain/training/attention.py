"""Which attention a training batch takes: plain products where the fused kernel is slow and there is room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from kbtrain.llm.precision import fused_attention_is_slow

_ROOM = 1 << 30  # bytes that plain attention may keep for the backward pass; the fused kernel keeps no scores


@contextmanager
def attention_for_training(model: Any, shape: Sequence[int], bf16: bool) -> Iterator[None]:
    """Within it, ``model`` computes a batch of ``shape`` (rows, tokens) with the faster attention.

    Gradient checkpointing computes parts again later, outside, where the attention must be the same: left alone.
    """
    again = any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    fused = model.config._attn_implementation == "sdpa" and not again
    slow = fused_attention_is_slow(model.device.type, torch.bfloat16 if bf16 else model.dtype)
    if not (fused and slow and kept_bytes(model.config, *shape) <= _ROOM):
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")


def kept_bytes(config: Any, rows: int, tokens: int) -> int:
    """What plain attention keeps of a batch: the weights of all heads and layers, in fp32 and twice in 16 bits."""
    text = config.get_text_config()
    return int(8 * rows * tokens * tokens * text.num_attention_heads * text.num_hidden_layers)
