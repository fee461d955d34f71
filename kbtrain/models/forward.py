"""Forward passes of a model: arguments that transformers has renamed, and logits in fp32.

A logit of 20 in bf16 has steps of 0.125, so that p(True) would come in steps of 0.03 and close questions would tie.
The rest of the model may well compute in bf16.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel


def cache_argument(module: nn.Module) -> str | None:
    """Name under which a module takes its cache: ``cache`` since transformers 5.24, ``past_key_values`` before, or None
    where it takes none. An adapter passes its arguments to the model that it wraps."""
    wrapped: Any = module
    kind: Any = type(wrapped.get_base_model() if hasattr(module, "get_base_model") else module)
    return _cache_argument(kind)


@functools.cache
def _cache_argument(kind: type[nn.Module]) -> str | None:
    names = inspect.signature(kind.forward).parameters
    like_mamba = getattr(kind, "_is_stateful", False) and "position_ids" not in names
    if like_mamba or kind.__name__.startswith(("RecurrentGemma", "MiniMaxFor")):
        return None  # their states are no cache of tokens, by whichever name they take them
    return next((name for name in ("cache", "past_key_values") if name in names), None)


def with_cache(module: nn.Module, cache: Any) -> dict[str, Any]:
    """Keyword arguments of a pass that reads and fills a cache."""
    return {cache_argument(module) or "past_key_values": cache, "use_cache": True}


@contextmanager
def fp32_output_layer(model: PreTrainedModel, tokens: Sequence[int] | None = None) -> Iterator[None]:
    """Context in which the model's logits are fp32; with ``tokens`` only theirs, in that order. Later steps (scaling,
    soft caps) treat each logit alone, so a selection does not change them."""
    import torch

    head: Any = model.get_output_embeddings()
    patched = head.__dict__.get("forward")

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        weight, bias = head.weight, getattr(head, "bias", None)
        if tokens is not None:
            rows = list(tokens)
            weight, bias = weight[rows], None if bias is None else bias[rows]
        with torch.autocast(hidden.device.type, enabled=False):
            exact_bias = None if bias is None else bias.float()
            return torch.nn.functional.linear(hidden.float(), weight.float(), exact_bias)

    head.forward = forward
    try:
        yield
    finally:
        if patched is None:
            del head.forward
        else:
            head.forward = patched
