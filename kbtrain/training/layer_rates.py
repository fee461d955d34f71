"""A learning rate for each layer: the nearer to the input, the slower; new layers at a rate of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch import nn

from kbtrain.errors import UserError

_LAYER = re.compile(r"\b(?:layer|layers|h|block|blocks)\.(\d+)\.")
_HEAD = re.compile(r"\b(?:classifier|score|pooler|pre_classifier)\b")


@dataclass(frozen=True)
class Rates:
    """``base`` for the top layer, times ``decay`` for each layer below; ``head`` for pooler and classifier."""

    base: float
    decay: float
    head: float


def depth(name: str, n_layers: int) -> int:
    """0 for embeddings, 1 ... n for the layers."""
    found = _LAYER.search(name)
    return int(found.group(1)) + 1 if found else (0 if "embed" in name else n_layers)


def freeze(model: nn.Module, layers: int) -> None:
    """Embeddings and the lowest ``layers`` layers stay as they are. Raises :class:`UserError` if none is left above."""
    n_layers = max((depth(name, 0) for name, _ in model.named_parameters()), default=0)
    if layers >= n_layers:
        raise UserError(f"key 'frozen_layers': {layers}, and the model has {n_layers}; leave one at least to learn")
    for name, parameter in model.named_parameters():
        if depth(name, n_layers) <= layers:
            parameter.requires_grad_(False)


def parameter_groups(model: nn.Module, rates: Rates, weight_decay: float) -> list[dict[str, Any]]:
    """Groups for an optimiser, of like rate and decay; biases and norms do not decay."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    n_layers = max((depth(name, 0) for name, _ in named), default=0)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named:
        below = n_layers - depth(name, n_layers)
        rate = rates.head if _HEAD.search(name) else rates.base * rates.decay**below
        groups.setdefault((rate, weight_decay if parameter.dim() > 1 else 0.0), []).append(parameter)
    return [{"params": group, "lr": rate, "weight_decay": decay} for (rate, decay), group in groups.items()]
