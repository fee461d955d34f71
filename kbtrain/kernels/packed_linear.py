"""Linear layers whose weights are packed once into the layout of the CPU's products.

PyTorch hands plain 16-bit weights to oneDNN, which lays them out again for every product: a tenth of the products'
time. In fp32 it calls MKL, whose products take two to four times as long on CPUs that are not Intel's (measured).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

import torch
from torch import nn

from kbtrain.kernels.memory import machine_memory


def weight_versions(weights: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Versions of the weights: another result means that a weight was replaced or written to. Writes to weights of
    inference mode, and writes through ``.data`` (as of DeepSpeed's optimizers), are not counted."""
    return [(weight.data_ptr(), -1 if weight.is_inference() else weight._version) for weight in weights]


_SHARE = 0.1  # most of the machine's memory that packed weights may take, in addition to the plain ones


class PackedWeights:
    """The packed weights of a model's linear layers, if they are of ``dtype``, packed at the first use; serves the
    model's replicas too."""

    def __init__(self, model: nn.Module, dtype: torch.dtype = torch.bfloat16) -> None:
        self.pays = _pays(model, dtype)
        self._layers = linear_layers(model) if self.pays else []
        self._packed: list[torch.Tensor] = []
        self._versions: list[tuple[int, int]] = []
        self._lock = Lock()

    def current(self) -> list[torch.Tensor]:
        """Packed weights of each layer, packed again if weights have changed; empty where packing does not pay."""
        with self._lock:
            versions = weight_versions(layer.weight for layer in self._layers)
            if versions != self._versions:
                pack: Any = torch.ops.mkldnn._reorder_linear_weight
                self._packed = [pack(layer.weight.detach()) for layer in self._layers]
                self._versions = versions
            return self._packed


class PackedLinears:
    """Within ``with``, the model's linear layers compute with packed weights, for inference alone and where that helps.
    ``weights`` are those of the model of which this one is a replica."""

    def __init__(self, model: nn.Module, weights: PackedWeights | None = None) -> None:
        self.weights = weights or PackedWeights(model)
        self._layers = linear_layers(model) if self.weights.pays else []

    def __enter__(self) -> None:
        for layer, packed in zip(self._layers, self.weights.current(), strict=True):
            layer.forward = _forward(packed, layer.bias)  # type: ignore[method-assign,assignment]

    def __exit__(self, *error: object) -> None:
        for layer in self._layers:
            del layer.forward


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    """Modules of exactly this class."""
    return [module for module in model.modules() if type(module) is nn.Linear]


def _forward(packed: torch.Tensor, bias: torch.Tensor | None) -> Callable[[torch.Tensor], torch.Tensor]:
    product: Any = torch.ops.mkldnn._linear_pointwise

    def forward(x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = product(x, packed, bias, "none", [], "")
        return output

    return forward


def _pays(model: nn.Module, dtype: torch.dtype) -> bool:
    weights = [layer.weight for layer in linear_layers(model)]
    if not weights or any(w.device.type != "cpu" or w.dtype is not dtype for w in weights):
        return False
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return sum(w.numel() * w.itemsize for w in weights) <= _SHARE * machine_memory()
