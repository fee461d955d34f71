"""Many answers to one prompt, with the prompt's keys and values kept once.

All rows of a question attend to the same prefix: their queries become one matrix product against it, whose scores
stand beside those of each row's own few tokens in one softmax. The function goes through transformers' attention
interface, so it serves every causal model that does, with full attention (or a window that is not full yet).
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
    bias: torch.Tensor | None  # (questions, 1, 1, last places): -inf on padding; None where there is none
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
    prefix, (rows, heads, _, size) = ACTIVE.get(), query.shape
    scale = size**-0.5 if scaling is None else scaling
    scaled = (query * scale).view(rows, key.shape[1], -1, size)  # the heads that share a kv head side by side
    scores = _scores(scaled, prefix.keys[module.layer_idx], key, prefix.layout)
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    if prefix.bias is not None:
        padded = prefix.bias.shape[-1]
        end = scores.shape[-1] - key.shape[-2]
        scores[..., end - padded : end] += prefix.bias
    torch.softmax(scores, dim=-1, out=scores)  # in place: writing it elsewhere costs as much as computing it
    output = _mixed(scores, prefix.values[module.layer_idx], value, prefix.layout)
    return output.reshape(rows, 1, heads, -1), None


def _scores(query: torch.Tensor, shared: torch.Tensor, own: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Scores of ``query`` (rows, kv heads, group, size): (questions, kv heads, width * group, prefix + own tokens).

    Rows and the heads of a group are the rows of one product per question and kv head.
    """
    _, kv_heads, group, size = query.shape
    length, n_own = shared.shape[2], own.shape[2]
    grid = layout.to_grid(query).transpose(1, 2).reshape(-1, layout.width * group, size)
    scores = query.new_empty(len(grid), layout.width * group, length + n_own)
    torch.bmm(grid, shared.flatten(0, 1).transpose(1, 2), out=scores[..., :length])
    to_own = layout.to_grid(query @ own.transpose(-1, -2)).transpose(1, 2)
    scores.view(-1, kv_heads, layout.width, group, length + n_own)[..., length:] = to_own
    return scores.view(-1, kv_heads, layout.width * group, length + n_own)


def _mixed(shares: torch.Tensor, shared: torch.Tensor, own: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Values (rows, kv heads, group, size) weighed by what :func:`_scores` became in the softmax."""
    kv_heads, length = shared.shape[1:3]
    flat = shares.flatten(0, 1)
    from_prefix = torch.bmm(flat[..., :length], shared.flatten(0, 1))

    def back(x: torch.Tensor) -> torch.Tensor:
        grid = x.view(-1, kv_heads, layout.width, x.shape[1] // layout.width, x.shape[2])
        return layout.to_rows(grid.transpose(1, 2))

    return back(from_prefix) + back(flat[..., length:].contiguous()) @ own


AttentionInterface.register(NAME, shared_prefix_attention)
