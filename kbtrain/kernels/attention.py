"""Which attention a training batch takes: in blocks, by plain products, where the fused kernel is slow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kbtrain.kernels.training_attention import LENGTHS, NAME, serves
from kbtrain.models.bases import checkpointed
from kbtrain.models.precision import fused_attention_is_slow


@contextmanager
def attention_for_training(model: Any, mask: torch.Tensor, bf16: bool) -> Iterator[None]:
    """Within it, ``model`` computes a batch with the faster attention; ``mask`` (rows, tokens): 0 on left padding.

    Gradient checkpointing computes parts again later, outside, where the attention must be the same: left alone.
    """
    fused = model.config._attn_implementation == "sdpa" and not checkpointed(model)
    slow = fused_attention_is_slow(model.device.type, torch.bfloat16 if bf16 else model.dtype)
    if not (fused and slow and serves(model, mask.shape[1])):
        yield
        return
    lengths = LENGTHS.set(mask.sum(dim=1).tolist())
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")
        LENGTHS.reset(lengths)
