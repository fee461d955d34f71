"""Many answers to one prompt, with the prompt's keys and values kept once.

All rows of a question attend to the same prefix: their queries become one matrix product against it, and the result
is merged with each row's attention to its own few tokens by log-sum-exp. The function goes through transformers'
attention interface, so it serves every causal model that does, with full attention (or a window that is not full yet).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.cache_utils import DynamicLayer

NAME = "kbtrain_shared_prefix"
_LONG = 384  # tokens of prefix from which the fused kernel is faster than two plain products in fp32 (measured)


@dataclass
class Layout:
    """Which rows belong to which question: row r sits in ``slots[r]`` of a (questions, width) grid."""

    n_questions: int
    width: int
    slots: torch.Tensor | None  # None: the grid is full and in order

    @classmethod
    def of(cls, question_of_row: Sequence[int], n_questions: int) -> Layout:
        counts = [0] * n_questions
        position = []
        for question in question_of_row:
            position.append((question, counts[question]))
            counts[question] += 1
        width = max(counts)
        full = all(count == width for count in counts)
        slots = None if full else torch.tensor([q * width + i for q, i in position])
        return cls(n_questions, width, slots)

    def to_grid(self, rows: torch.Tensor) -> torch.Tensor:
        """(rows, ...) to (questions, width, ...); empty places hold zeros."""
        if self.slots is None:
            return rows.view(self.n_questions, self.width, *rows.shape[1:])
        grid = rows.new_zeros(self.n_questions * self.width, *rows.shape[1:])
        return grid.index_copy_(0, self.slots, rows).view(self.n_questions, self.width, *rows.shape[1:])

    def to_rows(self, grid: torch.Tensor) -> torch.Tensor:
        """The inverse of :meth:`to_grid`."""
        flat = grid.flatten(0, 1)
        return flat if self.slots is None else flat.index_select(0, self.slots)


@dataclass
class Prefix:
    """Keys and values of the prompts, (questions, kv heads, length, head size) per layer, padded on the right."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    bias: torch.Tensor | None  # (questions, 1, 1, length): -inf on padding; None where there is none
    layout: Layout


ACTIVE: ContextVar[Prefix] = ContextVar("kbtrain_active_prefix")
"""The prefix that the attention function reads while a model runs under its name."""


class OwnLayer(DynamicLayer):
    """Keys and values of the generated tokens, written in place: appending by concatenation copies all of them."""

    def __init__(self, capacity: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capacity = capacity
        self.length = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append (rows, kv heads, 1, size); returns all so far."""
        if not self.is_initialized:
            shape = (*key_states.shape[:2], self.capacity)
            self.keys = key_states.new_empty(*shape, key_states.shape[-1])
            self.values = value_states.new_empty(*shape, value_states.shape[-1])
            self.is_initialized = True
        assert self.keys is not None and self.values is not None  # for the type checker
        end = self.length + key_states.shape[-2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        """Tokens held so far."""
        return self.length


def _weigh(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, softcap: float | None, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention output and the log-sum-exp of its scores, both float32; ``query`` is scaled already."""
    scores = query @ keys.transpose(-1, -2)
    if softcap is not None:
        scores = torch.tanh(scores.float() / softcap) * softcap
    if bias is not None:
        scores += bias.to(scores.dtype)
    top = scores.amax(dim=-1, keepdim=True)
    weights = scores.sub_(top).exp_()  # in the model's own precision: half the bytes, and 16-bit products take no other
    total = weights.sum(dim=-1, keepdim=True, dtype=torch.float32)
    return (weights.to(values.dtype) @ values).float() / total, total.log() + top


def _weigh_long(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`_weigh` in fp32 by PyTorch's fused CPU kernel, which never writes the scores down.

    In bf16 it would be slower than plain products: without AMX it multiplies in fp32.
    """
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, attn_mask=bias, scale=1.0
    )
    return output, lse.unsqueeze(-1)


def _prefix_part(
    query: torch.Tensor, prefix: Prefix, layer: int, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of all rows (rows, heads, size) to their question's prefix, and its log-sum-exp (rows, heads, 1)."""
    keys, values, width = prefix.keys[layer], prefix.values[layer], prefix.layout.width
    _, heads, size = query.shape
    kv_heads, length = keys.shape[1:3]
    group = heads // kv_heads
    # rows and the heads that share a kv head become the rows of one product per question and kv head
    grid = prefix.layout.to_grid(query).view(-1, width, kv_heads, group, size)
    stacked = grid.transpose(1, 2).reshape(-1, kv_heads, width * group, size)
    if length >= _LONG and softcap is None and query.device.type == "cpu" and query.dtype == torch.float32:
        parts = _weigh_long(stacked, keys, values, prefix.bias)
    else:
        parts = _weigh(stacked, keys, values, softcap, prefix.bias)

    def back(x: torch.Tensor) -> torch.Tensor:
        grid = x.view(-1, kv_heads, width, group, x.shape[-1]).transpose(1, 2)
        return prefix.layout.to_rows(grid.reshape(-1, width, heads, x.shape[-1]))

    return back(parts[0]), back(parts[1])


def _own_part(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each row to its own generated tokens, the newest included."""
    rows, heads, size = query.shape
    output, lse = _weigh(query.view(rows, key.shape[1], -1, size), key, value, softcap, None)
    return output.view(rows, heads, -1), lse.view(rows, heads, 1)


def shared_prefix_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function. ``query`` (rows, heads, 1, size); ``key``/``value`` hold own tokens only."""
    if kwargs.get("s_aux") is not None or kwargs.get("position_bias") is not None:
        raise ValueError("attention sinks and position biases are not served by the shared prefix")
    prefix = ACTIVE.get()
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scaled = (query * scale).squeeze(2)
    from_prefix, lse_prefix = _prefix_part(scaled, prefix, module.layer_idx, softcap)
    from_own, lse_own = _own_part(scaled, key, value, softcap)
    share = torch.sigmoid(lse_own - lse_prefix)  # of the softmax's mass that lies on the row's own tokens
    return torch.lerp(from_prefix, from_own, share).to(query.dtype).unsqueeze(1), None


AttentionInterface.register(NAME, shared_prefix_attention)
