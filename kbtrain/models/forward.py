"""Arguments of a model's forward pass that transformers has renamed."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def cache_argument(module: nn.Module) -> str | None:
    """Name under which a module takes its cache: ``cache`` since transformers 5.24, ``past_key_values`` before, or None
    where it takes none. An adapter passes its arguments to the model that it wraps."""
    wrapped: Any = module
    kind: Any = type(wrapped.get_base_model() if hasattr(module, "get_base_model") else module)
    return _cache_argument(kind)


@functools.cache
def _cache_argument(kind: type[nn.Module]) -> str | None:
    names = inspect.signature(kind.forward).parameters
    if getattr(kind, "_is_stateful", False) and "position_ids" not in names:
        return None  # Mamba's states are no cache of tokens, by whichever name it takes them
    return next((name for name in ("cache", "past_key_values") if name in names), None)


def with_cache(module: nn.Module, cache: Any) -> dict[str, Any]:
    """Keyword arguments of a pass that reads and fills a cache."""
    return {cache_argument(module) or "past_key_values": cache, "use_cache": True}
