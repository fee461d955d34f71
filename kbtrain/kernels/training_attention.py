"""Causal attention for training by plain matrix products, block by block, its weights recomputed for the gradients.

For CPUs on which the fused kernel is slow (:func:`kbtrain.models.load.fused_attention_is_slow`); there a training batch
attends in blocks. Like the fused kernel, this keeps queries, keys and values only, but its products run at the
processor's 16-bit rate. Each row is computed without its padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from kbtrain.kernels.causal_blocks import BLOCK, causal_weights, future, plain
from kbtrain.models.adapters import checkpointed
from kbtrain.models.load import fused_attention_is_slow

NAME = "kbtrain_training_blocks"
LENGTHS: ContextVar[Sequence[int]] = ContextVar("kbtrain_row_lengths")
"""Real tokens of each row, which stand at its right end."""


def block_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function. ``query`` (rows, heads, length, size), ``key``/``value`` with kv heads."""
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        query, key, value = (x.to(torch.get_autocast_dtype(kind)) for x in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    attention: Any = BlockAttention
    return attention.apply(query * scale, key, value, LENGTHS.get()), None


class BlockAttention(torch.autograd.Function):
    """Attention of scaled queries; returns (rows, length, heads, size), zeros on padding."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.lengths = tuple(lengths)
        above = future(query)
        made = query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
        for row, start, end, first in _blocks(ctx.lengths, query.shape[2]):
            rows, n = _grouped(query[row, :, start:end], key), end - start
            weights = causal_weights(rows, key[row, :, first:end], above[:n, :n])
            output = weights @ value[row, :, first:end]
            made[row, start:end] = output.view(query.shape[1], n, -1).transpose(0, 1)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value = ctx.saved_tensors
        above, of_query = future(query), torch.zeros_like(query)
        of_key, of_value = (torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float)) for x in (key, value))
        for row, start, end, first in _blocks(ctx.lengths, query.shape[2]):
            rows, n = _grouped(query[row, :, start:end], key), end - start
            keys, values = key[row, :, first:end], value[row, :, first:end]
            weights = causal_weights(rows, keys, above[:n, :n])
            grad = _grouped(grads[0][row, start:end].transpose(0, 1), key)
            of_value[row, :, first:end] += weights.transpose(1, 2) @ grad
            of_weights = grad @ values.transpose(1, 2)
            of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            of_query[row, :, start:end] = (of_scores @ keys).view(query.shape[1], n, -1)
            of_key[row, :, first:end] += of_scores.transpose(1, 2) @ rows
        return of_query, of_key.to(key.dtype), of_value.to(value.dtype), None


AttentionInterface.register(NAME, block_attention)


def serves(model: Any, tokens: int) -> bool:
    """True if this model's attention is the plain causal one over rows of so many ``tokens``."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return plain(model) and (window is None or tokens <= window)


def _blocks(lengths: Sequence[int], width: int) -> Iterator[tuple[int, int, int, int]]:
    """(row, first query, last query + 1, the row's first token) of every block."""
    for row, length in enumerate(lengths):
        first = width - length
        for start in range(first, width, BLOCK):
            yield row, start, min(width, start + BLOCK), first


def _grouped(states: Tensor, key: Tensor) -> Tensor:
    """(heads, n, size) to (kv heads, heads of one kv head * n, size): these become rows of one product."""
    kv_heads = key.shape[1]
    return states.reshape(kv_heads, -1, states.shape[-1])


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
