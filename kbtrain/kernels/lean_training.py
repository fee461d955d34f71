"""Norms and gated MLPs of the Llama family that keep less for the backward pass, and pass over memory less often.

As they come, a norm keeps its input twice in fp32 and hands on fp32, which each projection then casts for itself; a
gated MLP keeps four intermediate results. Here a norm keeps its input and one number a token and hands on what is
computed in; an MLP keeps two results and computes the rest again, which is elementwise and cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from kbtrain.kernels.lean_adapters import lean_adapters
from kbtrain.models.bases import checkpointed

_NORMS = {"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"}  # weight * x / rms(x), and nothing else
_MLPS = {"LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP"}  # down(act(gate(x)) * up(x)), and nothing else
_PART = 300_000  # numbers: 1.2 MB in fp32 (between 150,000 and 600,000 it makes no difference)


@contextmanager
def lean_layers(model: nn.Module) -> Iterator[None]:
    """Within it, ``model``'s forward pass is lean, to rounding the same; other families' layers are left alone.

    So are adapters (:mod:`kbtrain.kernels.lean_adapters`). Gradient checkpointing computes parts again later, outside:
    then all is left alone.
    """
    changed: list[nn.Module] = []
    try:
        for name, module in () if checkpointed(model) else model.named_modules():
            # the last norm is before the output layer, which is computed in fp32
            lean = None if name.rpartition(".")[2] == "norm" else _lean_forward(module)
            if lean is not None and "forward" not in module.__dict__:
                module.forward = lean
                changed.append(module)
        with nullcontext() if checkpointed(model) else lean_adapters(model):
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
    """weight * x / sqrt(mean(x^2) + eps) in fp32 at least, given out as ``dtype``; x is (..., d), weight (d,).

    On a CPU a part of the tokens at a time, so that what is computed on the way stays in its caches.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        made = torch.empty_like(flat, dtype=dtype)
        scale = flat.new_empty(len(flat), 1, dtype=_wide(x))
        for part in _parts(flat):
            wide = flat[part].to(scale.dtype)
            torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps), out=scale[part])
            made[part] = (wide * scale[part]).mul_(weight)
        ctx.save_for_backward(x, weight, scale)
        return made.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight, scale = ctx.saved_tensors
        flat, given = (states.reshape(-1, x.shape[-1]) for states in (x, grads[0]))
        of_x, of_weight = torch.empty_like(flat), torch.zeros_like(weight, dtype=scale.dtype)
        for part in _parts(flat):
            normed, grad = flat[part] * scale[part], given[part].to(scale.dtype)
            both = grad * normed
            of_weight += both.sum(0)
            along = both.mul_(weight).mean(-1, keepdim=True)
            of_x[part] = (grad * weight).sub_(normed.mul_(along)).mul_(scale[part])
        return of_x.view(x.shape), of_weight.to(weight.dtype), None, None


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _parts(flat: Tensor) -> Iterator[slice]:
    """Rows of (tokens, d) that are worked on together."""
    rows = max(1, _PART // flat.shape[-1]) if flat.device.type == "cpu" else max(1, len(flat))
    for start in range(0, len(flat), rows):
        yield slice(start, start + rows)


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
