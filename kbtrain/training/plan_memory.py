"""Memory of one device by ZeRO stage, in bytes: weights, gradients, AdamW, activations, and the extra of a step.

Without DeepSpeed weights are in fp32 (adapters: the frozen ones in 16 bits, or NF4) and products in 16 bits; under
DeepSpeed (bf16) weights and gradients have 16 bits, and AdamW keeps an fp32 copy beside its two moments. On a GPU the
fused AdamW needs no memory of its own.

Activations that the forward pass keeps for the backward pass are counted on tensors with shapes but no memory. The real
model class runs once with one layer and once with two, and every tensor that autograd keeps is counted once by its
storage (weights are not); the difference is what a layer keeps, and all layers keep the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PretrainedConfig

Layout = Literal["none", "zero1", "zero2", "zero2_offload", "zero3"]
LAYOUTS: dict[Layout, str] = {
    "none": "no ZeRO",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "zero2_offload": "ZeRO-2 + offload",
    "zero3": "ZeRO-3",
}
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)  # 4 bits, an 8-bit scale for 64 weights, an fp32 one for 256 of those
CONTEXT = 2.0**30  # assumed: the GPU's context, libraries' workspaces, the allocator's gaps
_BUCKET = 500_000_000  # elements of DeepSpeed's buffers for reducing and gathering
_LIVE = 1_000_000_000  # elements that ZeRO-3 keeps gathered at once


@dataclass(frozen=True)
class Weights:
    """Numbers of weights: ``frozen`` and ``trained``; ``frozen_bytes`` of a frozen one; ``full``: all are trained."""

    frozen: int
    trained: int
    frozen_bytes: float = 2.0

    @property
    def full(self) -> bool:
        """No adapters: every weight is trained."""
        return self.frozen == 0


@dataclass(frozen=True)
class Need:
    """Bytes on one device; ``stepping`` is what the optimizer's step needs on top, when activations are gone.
    ``host``: bytes of the machine's memory that offloading takes, all its devices together."""

    layout: Layout
    weights: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    stepping: float
    context: float = CONTEXT
    host: float = 0.0

    @property
    def peak(self) -> float:
        """The larger of the backward pass and the step."""
        during = max(self.activations, self.stepping)
        return self.context + self.weights + self.gradients + self.optimizer + self.buffers + during


def needs(layout: Layout, weights: Weights, devices: int, activations: float, context: float = CONTEXT) -> Need:
    """``devices``: all GPUs together; ``activations``: bytes of one device's batch."""
    trained, frozen = weights.trained, weights.frozen * weights.frozen_bytes
    if layout == "none":
        mirrored = 4 * trained if devices > 1 else 0  # the buckets in which gradients travel
        return Need(layout, frozen + 4 * trained, 4 * trained, 8 * trained, activations, mirrored, 0, context)
    share, half = trained / devices, frozen + 2 * trained
    bucket = 2 * 2 * min(_BUCKET, trained)
    to_fp32 = 2 * share  # gradients are written out in fp32, and their 16 bits let go
    if layout == "zero1":
        return Need(layout, half, 2 * trained, 12 * share, activations, bucket, 0, context)
    if layout == "zero2":
        return Need(layout, half, 2 * share, 12 * share, activations, bucket, to_fp32, context)
    if layout == "zero2_offload":
        return Need(layout, half, 0, 0, activations, bucket, 0, context, host=18 * trained)
    whole = 2 * min(_LIVE, trained + weights.frozen)
    return Need(layout, half / devices, 2 * share, 12 * share, activations, bucket + whole, to_fp32, context)


Adapt = Callable[[Any], Any]


@dataclass(frozen=True)
class Activations:
    """Bytes kept for a batch: by each layer (``layer``), by everything else (``rest``), and by a layer's input alone,
    which is all that gradient checkpointing keeps of it (``layer_input``)."""

    layers: int
    layer: int
    rest: int
    layer_input: int

    def total_bytes(self, checkpointing: bool) -> int:
        """With checkpointing one layer at a time is computed again and then kept whole."""
        if checkpointing:
            return self.rest + self.layers * self.layer_input + self.layer
        return self.rest + self.layers * self.layer


@dataclass(frozen=True)
class Batch:
    """Rows and tokens of one forward pass; ``answer`` tokens have logits. ``autocast``: weights in fp32, products in
    16 bits; else ``bits`` (16 or 32) is what everything is computed in."""

    rows: int
    tokens: int
    answer: int
    bits: int = 16
    autocast: bool = False


def activations(config: PretrainedConfig, batch: Batch, adapt: Adapt | None = None, lean: bool = True) -> Activations:
    """``config``: a causal language model's; ``adapt`` adds adapters to a model; ``lean``: norms and MLPs keep less, as
    the recipes have them unless they checkpoint gradients."""
    with_one, with_two = (_kept_bytes(_with_layers(config, n), batch, adapt, lean) for n in (1, 2))
    text = config.get_text_config()
    width = 4 if batch.autocast else batch.bits // 8
    layer_input = batch.rows * batch.tokens * text.hidden_size * width
    return Activations(text.num_hidden_layers, with_two - with_one, 2 * with_one - with_two, layer_input)


def _with_layers(config: PretrainedConfig, layers: int) -> PretrainedConfig:
    changed = copy.deepcopy(config)
    text = changed.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    return changed


def _kept_bytes(config: PretrainedConfig, batch: Batch, adapt: Adapt | None, lean: bool) -> int:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import AutoModelForCausalLM

    from kbtrain.kernels.fp32_output_layer import fp32_output_layer
    from kbtrain.kernels.lean_training import lean_layers

    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    dtype = torch.float32 if batch.autocast or batch.bits == 32 else torch.bfloat16
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
        model = (adapt(model) if adapt else model).train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        _pretend(model)
        shape = (batch.rows, batch.tokens)
        ids = torch.zeros(shape, dtype=torch.long)
        mask = torch.ones(batch.rows, 1, batch.tokens, batch.tokens, dtype=torch.bool)
        answer = torch.zeros(batch.rows, batch.answer, dtype=torch.long)
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=batch.autocast),
            fp32_output_layer(model),
            lean_layers(model) if lean else nullcontext(),
        ):
            output = model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=torch.zeros(shape, dtype=torch.long),
                logits_to_keep=batch.answer,
                use_cache=False,
            )
            loss = output.logits.float().logsumexp(-1) - output.logits.float().gather(-1, answer[..., None])[..., 0]
            loss.sum()
        weights = {p.untyped_storage()._cdata for p in model.parameters()}
        return sum(t.untyped_storage().nbytes() for key, t in saved.items() if key not in weights)


def _pretend(model: nn.Module) -> None:
    """Every weight becomes one of the same shape that claims to be on the CPU; tied ones stay one."""
    import torch

    placeholders: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                fresh = torch.nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype), weight.requires_grad)
                module._parameters[name] = placeholders.setdefault(id(weight), fresh)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)
