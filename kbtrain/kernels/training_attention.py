"""Causal attention for training by plain matrix products, block by block, its weights recomputed for the gradients.

For CPUs on which the fused kernel is slow (:func:`kbtrain.models.load.fused_attention_is_slow`), and for packed rows
(:mod:`kbtrain.training.answer_trainer`): each sees itself and the prefix that all of them share. Each row is computed
without its padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface

from kbtrain.kernels.causal_blocks import BLOCK, causal_weights, future, plain
from kbtrain.models.adapters import checkpointed
from kbtrain.models.load import fused_attention_is_slow

NAME = "kbtrain_training_blocks"


class Span(NamedTuple):
    """Tokens ``first`` to ``end`` of a row that see each other, and ``before`` tokens at the row's beginning, too."""

    row: int
    first: int
    end: int
    before: int = 0


SPANS: ContextVar[Sequence[Span]] = ContextVar("kbtrain_spans")  # all real tokens of the batch


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
    return attention.apply(query * scale, key, value, SPANS.get()), None


class BlockAttention(torch.autograd.Function):
    """Attention of scaled queries; returns (rows, length, heads, size), zeros on padding."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, spans: Sequence[Span]) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.spans = tuple(spans)
        above = future(query)
        outputs = query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
        for start, end, span in _blocks(ctx.spans):
            rows, n = _grouped(query[span.row, :, start:end], key), end - start
            weights = causal_weights(rows, _visible_states(key, span, end), above[:n, :n])
            output = weights @ _visible_states(value, span, end)
            outputs[span.row, start:end] = output.view(query.shape[1], n, -1).transpose(0, 1)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value = ctx.saved_tensors
        above, of_query = future(query), torch.zeros_like(query)
        of_key, of_value = (torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float)) for x in (key, value))
        for start, end, span in _blocks(ctx.spans):
            rows, n = _grouped(query[span.row, :, start:end], key), end - start
            keys, values = _visible_states(key, span, end), _visible_states(value, span, end)
            weights = causal_weights(rows, keys, above[:n, :n])
            grad = _grouped(grads[0][span.row, start:end].transpose(0, 1), key)
            _add(of_value, span, end, weights.transpose(1, 2) @ grad)
            of_weights = grad @ values.transpose(1, 2)
            of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            of_query[span.row, :, start:end] = (of_scores @ keys).view(query.shape[1], n, -1)
            _add(of_key, span, end, of_scores.transpose(1, 2) @ rows)
        return of_query, of_key.to(key.dtype), of_value.to(value.dtype), None


AttentionInterface.register(NAME, block_attention)


def serves(model: Any, tokens: int) -> bool:
    """True if this model's attention is the plain causal one over rows of ``tokens`` tokens."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return plain(model) and (window is None or tokens <= window)


def _blocks(spans: Sequence[Span]) -> Iterator[tuple[int, int, Span]]:
    """(first query, last query + 1, their span) of every block."""
    for span in spans:
        for start in range(span.first, span.end, BLOCK):
            yield start, min(span.end, start + BLOCK), span


def _visible_states(states: Tensor, span: Span, end: int) -> Tensor:
    """(kv heads, seen, size): what the span's tokens before ``end`` see."""
    span_states = states[span.row, :, span.first : end]
    return torch.cat([states[span.row, :, : span.before], span_states], dim=1) if span.before else span_states


def _add(total: Tensor, span: Span, end: int, part: Tensor) -> None:
    """Add the gradient of :func:`_visible_states` to the positions of these states."""
    total[span.row, :, : span.before] += part[:, : span.before]
    total[span.row, :, span.first : end] += part[:, span.before :]


def _grouped(states: Tensor, key: Tensor) -> Tensor:
    """(heads, n, size) to (kv heads, heads of one kv head * n, size): these become rows of one product."""
    kv_heads = key.shape[1]
    return states.reshape(kv_heads, -1, states.shape[-1])


def packs(model: Any, tokens: int) -> bool:
    """True if this model can be trained on packed rows of ``tokens`` tokens: on a CPU, where a product's time is that
    of its operations."""
    return model.device.type == "cpu" and _attention_is_default(model) and serves(model, tokens)


def _attention_is_default(model: Any) -> bool:
    """True if the model uses PyTorch's attention, and only within a training step: gradient checkpointing recomputes
    parts outside of the context."""
    return model.config._attn_implementation == "sdpa" and not checkpointed(model)


@contextmanager
def attention_for_training(
    model: Any, mask: torch.Tensor, bf16: bool, spans: Sequence[Span] | None = None
) -> Iterator[None]:
    """Context in which ``model`` attends in blocks, where that is faster; ``mask`` (rows, tokens): 0 on left padding;
    ``spans``: of packed rows, for a model that :func:`packs`."""
    if spans is None:
        slow = fused_attention_is_slow(model.device.type, torch.bfloat16 if bf16 else model.dtype)
        if not (slow and _attention_is_default(model) and serves(model, mask.shape[1])):
            yield
            return
        width = mask.shape[1]
        spans = [Span(row, width - length, width) for row, length in enumerate(mask.sum(dim=1).tolist())]
    token = SPANS.set(spans)
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")
        SPANS.reset(token)
