"""The tokens with which many prompts begin (demonstrations): their keys and values are computed once, for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from kbtrain.llm.sampler import prefill


class PromptHead:
    """A head of at least one token. Prompts that begin with it are prefilled from its end on.

    ``blocks`` as in :func:`kbtrain.llm.sampler.prefill`.
    """

    def __init__(self, model: PreTrainedModel, ids: Sequence[int], blocks: bool = False) -> None:
        self.model = model
        self.ids = tuple(ids)
        with torch.inference_mode():
            self._cache, _ = prefill(model, [self.ids], blocks)

    def fits(self, prompts: Sequence[Sequence[int]]) -> bool:
        """Whether all of these begin with the head, and go on."""
        n = len(self.ids)
        return all(len(ids) > n and tuple(ids[:n]) == self.ids for ids in prompts)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[DynamicCache, torch.Tensor]:
        """As :func:`kbtrain.llm.sampler.prefill`, to rounding: keys and values of the whole prompts, and last logits.

        Padding stands on the right, as there.
        """
        n, model = len(self.ids), self.model
        tails = [list(ids[n:]) for ids in prompts]
        longest = max(map(len, tails))
        batch = torch.tensor([[*ids, *([ids[-1]] * (longest - len(ids)))] for ids in tails], device=model.device)
        last = torch.tensor([len(ids) - 1 for ids in tails], device=model.device)
        places, which = torch.unique(last, return_inverse=True)
        cache = DynamicCache(config=model.config)
        head: list[Any] = self._cache.layers
        for index, layer in enumerate(head):
            keys, values = (x.expand(len(tails), *x.shape[1:]) for x in (layer.keys, layer.values))
            cache.update(keys, values, index)
        positions = torch.arange(n, n + longest, device=model.device).unsqueeze(0).expand(len(tails), -1)
        output = model(
            input_ids=batch, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=places
        )
        rows = torch.arange(len(tails), device=model.device)
        return cache, output.logits[rows, which]
