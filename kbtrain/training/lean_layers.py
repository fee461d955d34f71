"""Norms and gated MLPs of the Llama family that keep less for the backward pass, and pass over memory less often.

As they come, a norm keeps its input twice in fp32 and hands on fp32, which each projection then casts for itself; a
gated MLP keeps four intermediate results. Here a norm keeps its input and one number a token and hands on what is
computed in; an MLP keeps two results and computes the rest again, which is elementwise and cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from kbtrain.training.bases import checkpointed

_NORMS = {"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"}  # weight * x / rms(x), and nothing else
_MLPS = {"LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP"}  # down(act(gate(x)) * up(x)), and nothing else


@contextmanager
def lean_layers(model: nn.Module) -> Iterator[None]:
    """Within it, ``model``'s forward pass is lean, to rounding the same; other families' layers are left alone.

    Gradient checkpointing computes parts again later, outside: left alone as well.
    """
    changed: list[nn.Module] = []
    try:
        for name, module in () if checkpointed(model) else model.named_modules():
            # the last norm is before the output layer, which is computed in fp32
            lean = None if name.rpartition(".")[2] == "norm" else _lean_forward(module)
            if lean is not None and "forward" not in module.__dict__:
                module.forward = lean
                changed.append(module)
        yield
    finally:
        for module in changed:
            del module.forward


def _lean_forward(module: Any) -> Callable[[Tensor], Tensor] | None:
    kind = type(module).__name__
    norm: Any = RMSNorm
    silu_times: Any = SiluTimes
    if kind in _NORMS:
        return lambda x: norm.apply(x, module.weight, module.variance_epsilon, _computed_in(x))
    if kind in _MLPS and isinstance(module.act_fn, (nn.SiLU, SiLUActivation)):
        return lambda x: module.down_proj(silu_times.apply(module.gate_proj(x), module.up_proj(x)))
    return None


def _computed_in(x: Tensor) -> torch.dtype:
    """The type to which the projections that follow would cast ``x``."""
    return torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype


class RMSNorm(torch.autograd.Function):
    """weight * x / sqrt(mean(x^2) + eps) in fp32 at least, given out as ``dtype``; x is (..., d), weight (d,)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        wide = x if x.dtype is torch.float64 else x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).mul_(weight).to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight, scale = ctx.saved_tensors
        normed, grad = x * scale, grads[0].to(scale.dtype)
        of_weight = (grad * normed).flatten(0, -2).sum(0)
        grad = grad * weight
        of_x = (grad - normed * (grad * normed).mean(-1, keepdim=True)).mul_(scale)
        return of_x.to(x.dtype), of_weight.to(weight.dtype), None, None


class SiluTimes(torch.autograd.Function):
    """silu(gate) * up."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return nn.functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (gate, up), grad = ctx.saved_tensors, grads[0]
        of_silu = torch.ops.aten.silu_backward(grad * up, gate)
        return of_silu, nn.functional.silu(gate).mul_(grad)
