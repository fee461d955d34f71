"""Decoding many rows in lockstep over prompts that are prefilled: with the shared prefix, or with copies of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from kbtrain.llm.sampler.shared_prefix import ACTIVE, NAME, Layout, OwnLayer, Prefix

_ALIGNED = 32  # scores whose rows are a multiple of so many numbers: softmax is a fifth slower over odd ones (measured)


def room_behind(lengths: Sequence[int], tokens: int) -> int:
    """Places behind the longest of the prompts for so many tokens of an answer."""
    return tokens + -(max(lengths) + tokens) % _ALIGNED


class SharedPrefixDecoder:
    """Decodes lines of several questions in lockstep, ``room`` tokens at most. What ``cache`` holds goes over to it.

    A line is one row of the model's batch; ``most`` (None: as many as at first) is how many there may come to be.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        cache: DynamicCache,
        lengths: Sequence[int],
        question_of_line: Sequence[int],
        room: int,
        most: int | None = None,
    ) -> None:
        self.model = model
        self.lengths = list(lengths)
        self.question_of_line = list(question_of_line)
        self.step_count = 0
        room = room_behind(lengths, room)
        self._own = [OwnLayer(most or len(question_of_line), room) for _ in cache.layers]
        self._cache = DynamicCache()
        self._cache.layers = list(self._own)
        self._attention = model.config._attn_implementation
        layers: list[Any] = cache.layers
        bias = _padding_bias(self.lengths, layers[0].keys)
        keys, values = zip(*(_taken(layer, max(lengths) + room) for layer in layers), strict=True)
        self._prefix = Prefix(keys, values, bias, Layout.of(question_of_line, len(self.lengths)))

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Feed each line's newest token (lines,); returns the logits of the next one, (lines, vocabulary)."""
        positions = torch.tensor([self.lengths[q] + self.step_count for q in self.question_of_line])
        self.step_count += 1
        self._prefix.n_own = self.step_count
        token = ACTIVE.set(self._prefix)
        self.model.set_attn_implementation(NAME)
        try:
            output = self.model(
                input_ids=tokens.unsqueeze(1),
                position_ids=positions.unsqueeze(1).to(self.model.device),
                past_key_values=self._cache,
                use_cache=True,
            )
        finally:
            self.model.set_attn_implementation(self._attention)
            ACTIVE.reset(token)
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def branch(self, lines: Sequence[int]) -> None:
        """Add copies of these lines behind all others."""
        self._place(lines, len(self.question_of_line))
        self._lay([*self.question_of_line, *(self.question_of_line[line] for line in lines)])

    def keep(self, lines: Sequence[int]) -> None:
        """Go on with these lines only (rising order)."""
        self._place(lines, 0)
        self._lay([self.question_of_line[line] for line in lines])

    def _place(self, lines: Sequence[int], to: int) -> None:
        which = torch.tensor(lines, device=self.model.device)
        for layer in self._own:
            layer.copy(which, to)

    def _lay(self, question_of_line: list[int]) -> None:
        self.question_of_line = question_of_line
        self._prefix.layout = Layout.of(question_of_line, len(self.lengths))


class CopiedPrefixDecoder:
    """The fallback for one question: the model's own attention over a copy of the prompt's cache for every row."""

    def __init__(
        self,
        model: PreTrainedModel,
        cache: DynamicCache,
        lengths: Sequence[int],
        question_of_line: Sequence[int],
        room: int,
        most: int | None = None,
    ) -> None:
        if len(lengths) != 1:
            raise ValueError(f"a copied prefix serves one question at a time, got {len(lengths)}")
        self.model = model
        self.position = lengths[0]
        self.cache = cache
        cache.batch_select_indices(torch.zeros(len(question_of_line), dtype=torch.long, device=model.device))

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """As :meth:`SharedPrefixDecoder.step`."""
        positions = torch.full((len(tokens), 1), self.position, device=self.model.device)
        output = self.model(
            input_ids=tokens.unsqueeze(1), position_ids=positions, past_key_values=self.cache, use_cache=True
        )
        self.position += 1
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def branch(self, lines: Sequence[int]) -> None:
        """As :meth:`SharedPrefixDecoder.branch`; the prompt's keys and values are copied as well."""
        self.keep([*range(self._count()), *lines])

    def keep(self, lines: Sequence[int]) -> None:
        """As :meth:`SharedPrefixDecoder.keep`."""
        self.cache.batch_select_indices(torch.tensor(lines, device=self.model.device))

    def _count(self) -> int:
        layers: list[Any] = self.cache.layers
        return len(layers[0].keys)


def _padding_bias(lengths: Sequence[int], keys: torch.Tensor) -> torch.Tensor | None:
    """-inf on padding, over the places that the shortest prompt does not reach; type and device of ``keys``."""
    longest, shortest = max(lengths), min(lengths)
    if shortest == longest:
        return None
    padded = torch.arange(shortest, longest) >= torch.tensor(lengths).unsqueeze(1)
    return keys.new_zeros(padded.shape).masked_fill_(padded.to(keys.device), float("-inf"))[:, None, None, :]


def _taken(layer: Any, places: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A layer's keys and values, (questions, kv heads, places, size); the layer itself lets go of them."""
    keys, values = layer.keys, layer.values
    missing = places - keys.shape[2]
    if missing:  # a prefill that knew of the decoder left room for it
        keys, values = (torch.nn.functional.pad(states, (0, 0, 0, missing)) for states in (keys, values))
    layer.keys = layer.values = None
    return keys, values
