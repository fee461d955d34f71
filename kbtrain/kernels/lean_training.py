"""Norms, gated MLPs and low-rank adapters that keep less for the backward pass; faster dropout on CPUs.

In the Llama family a norm keeps its input twice in fp32, and a gated MLP four intermediate results. Here a norm keeps
its input and one number a token, and an MLP two results. On a CPU each of peft's LoRA adapters keeps six bytes a number
for dropout. Here it keeps the input, which parallel adapters share, and one byte a number. Dropout's random numbers
take a quarter of the time, since torch draws them one by one, in one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from kbtrain.models.adapters import checkpointed

_STEPS = 2**16  # of a probability


class Dropout(nn.Dropout):
    """As ``nn.Dropout``, with a probability rounded to 1/65,536. On a CPU one 64-bit draw of torch's generator serves
    four numbers."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Zeros at random places while training, what is kept scaled up; same shape and type as ``input``."""
        if not self.training or input.device.type != "cpu" or not 0 < round(self.p * _STEPS) < _STEPS:
            return super().forward(input)
        mask, scale = kept_places(input, self.p)
        return input * mask.to(input.dtype).mul_(scale)


def kept_places(x: Tensor, p: float) -> tuple[Tensor, float]:
    """Positions that a dropout of probability ``p`` (below 1) keeps of ``x``, and the factor of the kept numbers."""
    if x.device.type != "cpu":
        return torch.empty(x.shape, dtype=torch.bool, device=x.device).bernoulli_(1 - p), 1 / (1 - p)
    dropped, n = round(p * _STEPS), x.numel()
    draws = torch.empty(-(-n // 4), dtype=torch.int64).random_(-(2**63), None)
    return draws.view(torch.int16)[:n].view(x.shape).ge(dropped - _STEPS // 2), _STEPS / (_STEPS - dropped)


@contextmanager
def lean_adapters(model: nn.Module) -> Iterator[None]:
    """Context in which ``model``'s adapters are lean, except those whose forward is already replaced. Results agree up
    to rounding; dropout draws other random numbers from the same generator."""
    changed = list(_adapters(model))
    for layer, dropout, down_proj in changed:
        layer.cast_input_dtype_enabled = False
        dropout.forward = lambda x: x
        down_proj.forward = _forward(dropout, down_proj)
    try:
        yield
    finally:
        for layer, dropout, down_proj in changed:
            layer.cast_input_dtype_enabled = True
            del dropout.forward, down_proj.forward


def _adapters(model: nn.Module) -> Iterator[tuple[Any, Any, Any]]:
    """Layers with one adapter, its dropout, and the product that follows it."""
    for layer in model.modules():
        downs, dropouts = getattr(layer, "lora_A", None), getattr(layer, "lora_dropout", None)
        if not isinstance(downs, nn.ModuleDict) or not isinstance(dropouts, nn.ModuleDict) or len(downs) != 1:
            continue
        ((name, down_proj),) = downs.items()
        dropout = dropouts[name]
        plain = type(dropout) is nn.Dropout and type(down_proj) is nn.Linear and down_proj.bias is None
        free = plain and "forward" not in dropout.__dict__ and "forward" not in down_proj.__dict__
        if free and getattr(layer, "cast_input_dtype_enabled", False):
            yield layer, dropout, down_proj


def _forward(dropout: Any, down_proj: Any) -> Callable[[Tensor], Tensor]:
    product: Any = DroppedProduct

    def forward(x: Tensor) -> Tensor:
        share = dropout.p if dropout.training else 0.0
        return cast("Tensor", product.apply(x, down_proj.weight, share, _computed_in(x, down_proj.weight.dtype)))

    return forward


class DroppedProduct(torch.autograd.Function):
    """dropout(x) times the weight, computed in ``dtype``; x is (..., in), weight (out, in), the result (..., out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, share: float, dtype: torch.dtype) -> Tensor:
        mask, ctx.scale = kept_places(x, share) if share else (None, 1.0)
        ctx.dtype = dtype
        ctx.save_for_backward(x, weight, *([] if mask is None else [mask]))
        return _dropped(x, mask, ctx.scale, dtype) @ weight.to(dtype).T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight, *masks = ctx.saved_tensors
        mask, grad = (masks[0] if masks else None), grads[0].to(ctx.dtype)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = _dropped(grad @ weight.to(ctx.dtype), mask, ctx.scale, x.dtype)
        if ctx.needs_input_grad[1]:
            inputs = _dropped(x, mask, ctx.scale, ctx.dtype)
            of_weight = (grad.flatten(0, -2).T @ inputs.flatten(0, -2)).to(weight.dtype)
        return of_x, of_weight, None, None


def _dropped(x: Tensor, mask: Tensor | None, scale: float, dtype: torch.dtype) -> Tensor:
    """``x`` scaled up where ``mask`` keeps it, 0 elsewhere."""
    if mask is None:
        return x.to(dtype)
    return mask.to(dtype).mul_(scale).mul_(x)


_NORMS = {"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"}  # weight * x / rms(x), and nothing else
_MLPS = {"LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP"}  # down(act(gate(x)) * up(x)), and nothing else
_PART = 300_000  # numbers: 1.2 MB in fp32 (between 150,000 and 600,000 it makes no difference)


@contextmanager
def lean_layers(model: nn.Module) -> Iterator[None]:
    """Context in which ``model``'s layers and adapters are lean, with results equal up to rounding. Layers of other
    families do not change, nor any under gradient checkpointing, which recomputes parts outside of the context."""
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


def _computed_in(x: Tensor, dtype: torch.dtype | None = None) -> torch.dtype:
    """The type to which products cast ``x``: autocast's, else ``dtype`` (None: its own)."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else dtype or x.dtype


class RMSNorm(torch.autograd.Function):
    """weight * x / sqrt(mean(x^2) + eps) in fp32 at least, given out as ``dtype``; x is (..., d), weight (d,). On a CPU
    a part of the tokens at a time, so that what is computed on the way stays in its caches."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        outputs = torch.empty_like(flat, dtype=dtype)
        scale = flat.new_empty(len(flat), 1, dtype=torch.promote_types(x.dtype, torch.float32))
        for part in _parts(flat):
            wide = flat[part].to(scale.dtype)
            torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps), out=scale[part])
            outputs[part] = (wide * scale[part]).mul_(weight)
        ctx.save_for_backward(x, weight, scale)
        return outputs.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight, scale = ctx.saved_tensors
        flat, grad_out = (states.reshape(-1, x.shape[-1]) for states in (x, grads[0]))
        of_x, of_weight = torch.empty_like(flat), torch.zeros_like(weight, dtype=scale.dtype)
        for part in _parts(flat):
            normed, grad = flat[part] * scale[part], grad_out[part].to(scale.dtype)
            product = grad * normed
            of_weight += product.sum(0)
            along = product.mul_(weight).mean(-1, keepdim=True)
            of_x[part] = (grad * weight).sub_(normed.mul_(along)).mul_(scale[part])
        return of_x.view(x.shape), of_weight.to(weight.dtype), None, None


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
