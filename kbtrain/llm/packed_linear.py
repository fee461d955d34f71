"""Linear layers whose weights are packed once into the layout of the CPU's 16-bit products.

PyTorch hands plain weights to oneDNN, which lays them out anew for every product: a tenth of the products' time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from kbtrain.llm.weight_versions import weight_versions

_SHARE = 0.1  # of the machine's memory that packed weights, which stand beside the plain ones, may take


class PackedLinears:
    """Within ``with``, the model's linear layers compute with packed weights; for inference alone.

    Does nothing where it does not help (a GPU, fp32, a CPU without 16-bit products) or where memory is short. Weights
    that were changed since are packed anew.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [m for m in model.modules() if type(m) is nn.Linear] if _pays(model) else []
        self._packed: list[torch.Tensor] = []
        self._versions: list[tuple[int, int]] = []

    def __enter__(self) -> None:
        versions = weight_versions(layer.weight for layer in self._layers)
        if versions != self._versions:
            pack: Any = torch.ops.mkldnn._reorder_linear_weight
            self._packed = [pack(layer.weight.detach()) for layer in self._layers]
            self._versions = versions
        for layer, packed in zip(self._layers, self._packed, strict=True):
            layer.forward = _forward(packed, layer.bias)  # type: ignore[method-assign,assignment]

    def __exit__(self, *error: object) -> None:
        for layer in self._layers:
            del layer.forward


def _forward(packed: torch.Tensor, bias: torch.Tensor | None) -> Callable[[torch.Tensor], torch.Tensor]:
    product: Any = torch.ops.mkldnn._linear_pointwise

    def forward(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = product(x, packed, bias, "none", [], "")
        return made

    return forward


def _pays(model: nn.Module) -> bool:
    weights = [m.weight for m in model.modules() if type(m) is nn.Linear]
    if not weights or any(w.device.type != "cpu" or w.dtype is not torch.bfloat16 for w in weights):
        return False
    if not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sum(w.numel() * w.itemsize for w in weights) <= _SHARE * memory
