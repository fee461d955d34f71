"""Prefill: one pass of prompts through the model, for their keys and values and the next token's logits.

The common prefix of many prompts (an instruction, demonstrations) is computed once, for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from kbtrain.kernels.causal_blocks import causal_blocks, pays
from kbtrain.kernels.packed_linear import weight_versions
from kbtrain.models.forward import with_cache

_LEAST_PREFIX = 8  # tokens that prompts begin with, from which on their own pass pays
_ALONE = 512  # tokens of a prompt from which it goes alone: its layers' inputs then stay in the CPU's caches (measured)


def prefill(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    blocks: bool = False,
    prefix: DynamicCache | None = None,
    room: int = 0,
) -> tuple[DynamicCache, torch.Tensor]:
    """Keys and values of the prompts and the logits after each one's last token, (prompts, vocabulary).

    Padding stands on the right, where a causal model's real tokens cannot see it. ``blocks``: attention may be computed
    in blocks where that is faster; long prompts then go through the model one by one, and up to ``room`` places of
    zeros are behind them, where a decoder would else have to copy. ``prefix``: cache of a prefix common to all
    prompts, which are given without it; the returned cache includes it.
    """
    longest = max(len(ids) for ids in prompts)
    in_blocks = blocks and pays(model, longest)
    if in_blocks and longest >= _ALONE:
        return _one_by_one(model, prompts, longest + room, prefix)
    # any id serves as padding here, nothing that is used depends on it
    batch = torch.tensor([[*ids, *([ids[-1]] * (longest - len(ids)))] for ids in prompts], device=model.device)
    last = torch.tensor([len(ids) - 1 for ids in prompts], device=model.device)
    places, which = torch.unique(last, return_inverse=True)
    cache = DynamicCache(config=model.config)
    start = 0 if prefix is None else begin(cache, prefix, len(prompts))
    positions = torch.arange(start, start + longest, device=model.device).expand(len(prompts), -1)
    with causal_blocks(model, places) if in_blocks else nullcontext():
        output = model(input_ids=batch, position_ids=positions, logits_to_keep=places, **with_cache(model, cache))
    return cache, output.logits[torch.arange(len(prompts), device=model.device), which]


def keeps_all(model: PreTrainedModel) -> bool:
    """True if every layer's cache holds all tokens: a prefix longer than a sliding window would lose its beginning."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)


def begin(cache: DynamicCache, prefix: DynamicCache, n_prompts: int) -> int:
    """Put the prefix into an empty cache, before every prompt; returns its length."""
    layers: list[Any] = prefix.layers
    for index, layer in enumerate(layers):
        keys, values = (states.expand(n_prompts, *states.shape[1:]) for states in (layer.keys, layer.values))
        cache.update(keys, values, index)
    return int(layers[0].keys.shape[2])


def _one_by_one(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], places: int, prefix: DynamicCache | None
) -> tuple[DynamicCache, torch.Tensor]:
    """Prefill each prompt alone. Its keys and values go into common tensors, with zeros on the right up to ``places``
    for each, besides the prefix."""
    together, logits = DynamicCache(config=model.config), []
    for p, ids in enumerate(prompts):
        cache = DynamicCache(config=model.config)
        start = 0 if prefix is None else begin(cache, prefix, 1)
        batch = torch.tensor([list(ids)], device=model.device)
        with causal_blocks(model, torch.tensor([len(ids) - 1], device=model.device)):
            logits.append(model(input_ids=batch, logits_to_keep=1, **with_cache(model, cache)).logits[:, -1])
        for whole, layer in zip(list[Any](together.layers), list[Any](cache.layers), strict=True):
            if p == 0:
                shape = (len(prompts), layer.keys.shape[1], start + places, layer.keys.shape[3])
                whole.keys, whole.values = layer.keys.new_zeros(shape), layer.values.new_zeros(shape)
            whole.keys[p, :, : start + len(ids)] = layer.keys[0]
            whole.values[p, :, : start + len(ids)] = layer.values[0]
    return together, torch.cat(logits)


class SharedPrefixCache:
    """A prefix of at least one token. Prompts that begin with it are prefilled from its end on."""

    def __init__(self, model: PreTrainedModel, ids: Sequence[int], blocks: bool = False) -> None:
        self.model = model
        self.ids = tuple(ids)
        self.blocks = blocks
        self.versions = weight_versions(model.parameters())
        with torch.inference_mode():
            self._cache, _ = prefill(model, [self.ids], blocks)

    def fits(self, prompts: Sequence[Sequence[int]]) -> bool:
        """True if all of these begin with the prefix, and are longer."""
        n = len(self.ids)
        return all(len(ids) > n and tuple(ids[:n]) == self.ids for ids in prompts)

    def prefill(self, prompts: Sequence[Sequence[int]], room: int = 0) -> tuple[DynamicCache, torch.Tensor]:
        """As :func:`~kbtrain.llm.sampler.prefill.prefill`, to rounding: whole prompts' keys and values, last logits."""
        n = len(self.ids)
        return prefill(self.model, [ids[n:] for ids in prompts], self.blocks, self._cache, room)

    def before(self, n_prompts: int) -> DynamicCache:
        """A new cache for ``n_prompts`` prompts, which holds the prefix."""
        cache = DynamicCache(config=self.model.config)
        begin(cache, self._cache, n_prompts)
        return cache


def current_prefix(
    cache: SharedPrefixCache | None, model: PreTrainedModel, ids: Sequence[int], blocks: bool = False
) -> SharedPrefixCache | None:
    """``cache`` if it is of these tokens and of the model's present weights, else a new one; None if they are few."""
    if len(ids) < _LEAST_PREFIX:
        return None
    if cache is not None and cache.ids == tuple(ids) and cache.versions == weight_versions(model.parameters()):
        return cache
    return SharedPrefixCache(model, ids, blocks)
