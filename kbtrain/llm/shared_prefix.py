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
from transformers import AttentionInterface, DynamicCache, PreTrainedModel

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
    bias: torch.Tensor | None  # (questions, 1, 1, length): -inf on padding; None where there is none
    layout: Layout


_ACTIVE: ContextVar[Prefix] = ContextVar("kbtrain_active_prefix")


def _part(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unnormalised softmax weights, their sums and the maxima, over the last dimension, in float32."""
    top = scores.amax(dim=-1, keepdim=True)
    weights = torch.exp(scores - top)
    return weights, weights.sum(dim=-1, keepdim=True), top


def _capped(scores: torch.Tensor, scaling: float, softcap: float | None) -> torch.Tensor:
    scores = scores.float() * scaling
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap


def _prefix_part(
    query: torch.Tensor, prefix: Prefix, layer: int, scaling: float, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of all rows to their question's prefix: (rows, heads, ...) sums, weights, maxima."""
    keys, values = prefix.keys[layer], prefix.values[layer]
    rows, heads, size = query.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    # rows and the heads that share a kv head become the rows of one product per question and kv head
    grid = prefix.layout.to_grid(query).view(-1, prefix.layout.width, kv_heads, group, size)
    stacked = grid.transpose(1, 2).reshape(-1, kv_heads, prefix.layout.width * group, size)
    scores = _capped(stacked @ keys.transpose(-1, -2), scaling, softcap)
    weights, total, top = _part(scores if prefix.bias is None else scores + prefix.bias)
    mixed = (weights.to(values.dtype) @ values).float()

    def back(x: torch.Tensor) -> torch.Tensor:
        grid = x.view(-1, kv_heads, prefix.layout.width, group, x.shape[-1]).transpose(1, 2)
        return prefix.layout.to_rows(grid.reshape(-1, prefix.layout.width, heads, x.shape[-1]))

    return back(mixed), back(total), back(top)


def _own_part(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of each row to its own generated tokens, the newest included."""
    rows, heads, size = query.shape
    grouped = query.view(rows, key.shape[1], -1, size)
    weights, total, top = _part(_capped(grouped @ key.transpose(-1, -2), scaling, softcap))
    mixed = (weights.to(value.dtype) @ value).float()
    return mixed.view(rows, heads, -1), total.view(rows, heads, 1), top.view(rows, heads, 1)


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
    prefix = _ACTIVE.get()
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    one = query.squeeze(2)
    mixed_p, total_p, top_p = _prefix_part(one, prefix, module.layer_idx, scale, softcap)
    mixed_o, total_o, top_o = _own_part(one, key, value, scale, softcap)
    top = torch.maximum(top_p, top_o)
    weight_p, weight_o = torch.exp(top_p - top), torch.exp(top_o - top)
    merged = (mixed_p * weight_p + mixed_o * weight_o) / (total_p * weight_p + total_o * weight_o)
    return merged.to(query.dtype).unsqueeze(1), None


AttentionInterface.register(NAME, shared_prefix_attention)


class SharedPrefixDecoder:
    """Decodes rows of several questions in lockstep; ``question_of_row`` is kept in rising order."""

    def __init__(self, model: PreTrainedModel, cache: DynamicCache, lengths: Sequence[int], question_of_row: list[int]):
        self.model = model
        self.lengths = list(lengths)
        self.question_of_row = question_of_row
        self.step_count = 0
        self.own = DynamicCache()
        self._attention = model.config._attn_implementation
        self._prefix = Prefix(
            [layer.keys for layer in cache.layers],
            [layer.values for layer in cache.layers],
            _padding_bias(self.lengths, model.device),
            Layout.of(question_of_row, len(self.lengths)),
        )

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Feed each row's newest token (rows,); returns the logits of the next one, (rows, vocabulary)."""
        positions = torch.tensor([self.lengths[q] + self.step_count for q in self.question_of_row])
        token = _ACTIVE.set(self._prefix)
        self.model.set_attn_implementation(NAME)
        try:
            output = self.model(
                input_ids=tokens.unsqueeze(1),
                position_ids=positions.unsqueeze(1).to(self.model.device),
                past_key_values=self.own,
                use_cache=True,
            )
        finally:
            self.model.set_attn_implementation(self._attention)
            _ACTIVE.reset(token)
        self.step_count += 1
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def keep(self, rows: list[int]) -> None:
        """Go on with these rows only (rising order)."""
        self.question_of_row = [self.question_of_row[r] for r in rows]
        self.own.batch_select_indices(torch.tensor(rows, device=self.model.device))
        self._prefix.layout = Layout.of(self.question_of_row, len(self.lengths))


class CopiedPrefixDecoder:
    """The fallback for one question: the model's own attention over a copy of the prompt's cache for every row."""

    def __init__(self, model: PreTrainedModel, cache: DynamicCache, lengths: Sequence[int], question_of_row: list[int]):
        if len(lengths) != 1:
            raise ValueError(f"a copied prefix serves one question at a time, got {len(lengths)}")
        self.model = model
        self.position = lengths[0]
        self.cache = cache
        cache.batch_select_indices(torch.zeros(len(question_of_row), dtype=torch.long, device=model.device))

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """As :meth:`SharedPrefixDecoder.step`."""
        positions = torch.full((len(tokens), 1), self.position, device=self.model.device)
        output = self.model(
            input_ids=tokens.unsqueeze(1), position_ids=positions, past_key_values=self.cache, use_cache=True
        )
        self.position += 1
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def keep(self, rows: list[int]) -> None:
        """As :meth:`SharedPrefixDecoder.keep`."""
        self.cache.batch_select_indices(torch.tensor(rows, device=self.model.device))


def _padding_bias(lengths: Sequence[int], device: torch.device) -> torch.Tensor | None:
    longest = max(lengths)
    if min(lengths) == longest:
        return None
    column = torch.arange(longest, device=device)
    padded = column >= torch.tensor(lengths, device=device).unsqueeze(1)
    return torch.zeros(padded.shape, device=device).masked_fill_(padded, float("-inf"))[:, None, None, :]
