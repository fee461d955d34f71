"""Decoding many rows in lockstep over prompts that are prefilled: with the shared prefix, or with copies of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from kbtrain.llm.shared_prefix import ACTIVE, NAME, Layout, OwnLayer, Prefix


class SharedPrefixDecoder:
    """Decodes rows of several questions in lockstep, ``room`` tokens at most; ``question_of_row`` rises."""

    def __init__(
        self, model: PreTrainedModel, cache: DynamicCache, lengths: Sequence[int], question_of_row: list[int], room: int
    ) -> None:
        self.model = model
        self.lengths = list(lengths)
        self.question_of_row = question_of_row
        self.step_count = 0
        self.own = DynamicCache()
        self.own.layers = [OwnLayer(room) for _ in cache.layers]
        self._attention = model.config._attn_implementation
        layers: list[Any] = cache.layers
        self._prefix = Prefix(
            [layer.keys for layer in layers],
            [layer.values for layer in layers],
            _padding_bias(self.lengths, layers[0].keys),
            Layout.of(question_of_row, len(self.lengths)),
        )

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Feed each row's newest token (rows,); returns the logits of the next one, (rows, vocabulary)."""
        positions = torch.tensor([self.lengths[q] + self.step_count for q in self.question_of_row])
        token = ACTIVE.set(self._prefix)
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
            ACTIVE.reset(token)
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

    def __init__(
        self, model: PreTrainedModel, cache: DynamicCache, lengths: Sequence[int], question_of_row: list[int], room: int
    ) -> None:
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


def _padding_bias(lengths: Sequence[int], keys: torch.Tensor) -> torch.Tensor | None:
    """-inf on padding, over the places that the shortest prompt does not reach; type and device of ``keys``."""
    longest, shortest = max(lengths), min(lengths)
    if shortest == longest:
        return None
    padded = torch.arange(shortest, longest) >= torch.tensor(lengths).unsqueeze(1)
    return keys.new_zeros(padded.shape).masked_fill_(padded.to(keys.device), float("-inf"))[:, None, None, :]
