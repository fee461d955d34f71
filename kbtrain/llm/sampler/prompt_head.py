"""The tokens with which many prompts begin (an instruction, demonstrations): computed once, for all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import torch
from transformers import DynamicCache, PreTrainedModel

from kbtrain.kernels.weight_versions import weight_versions
from kbtrain.llm.sampler.prefill import begin, prefill


class PromptHead:
    """A head of at least one token. Prompts that begin with it are prefilled from its end on.

    ``blocks`` as in :func:`kbtrain.llm.sampler.prefill.prefill`.
    """

    def __init__(self, model: PreTrainedModel, ids: Sequence[int], blocks: bool = False) -> None:
        self.model = model
        self.ids = tuple(ids)
        self.blocks = blocks
        self._versions = weight_versions(model.parameters())
        with torch.inference_mode():
            self._cache, _ = prefill(model, [self.ids], blocks)

    def current(self) -> bool:
        """Whether the model's weights are still those it was computed with."""
        return self._versions == weight_versions(self.model.parameters())

    def fits(self, prompts: Sequence[Sequence[int]]) -> bool:
        """Whether all of these begin with the head, and go on."""
        n = len(self.ids)
        return all(len(ids) > n and tuple(ids[:n]) == self.ids for ids in prompts)

    def prefill(self, prompts: Sequence[Sequence[int]], room: int = 0) -> tuple[DynamicCache, torch.Tensor]:
        """As :func:`~kbtrain.llm.sampler.prefill.prefill`, to rounding: whole prompts' keys and values, last logits.

        Padding stands on the right, as there.
        """
        n = len(self.ids)
        return prefill(self.model, [ids[n:] for ids in prompts], self.blocks, self._cache, room)

    def before(self, n_prompts: int) -> DynamicCache:
        """A new cache for so many prompts, which holds the head."""
        cache = DynamicCache(config=self.model.config)
        begin(cache, self._cache, n_prompts)
        return cache


def common_start(prompts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The longest run of tokens with which all of these begin, and after which each goes on."""
    shortest = min(len(ids) for ids in prompts)
    columns = zip(*(ids[: shortest - 1] for ids in prompts), strict=True)
    return tuple(column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns))
