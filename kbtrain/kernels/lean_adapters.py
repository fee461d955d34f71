"""Low-rank adapters (peft's LoRA) that keep less for the backward pass, and on a CPU draw their dropout faster.

As they come, each adapter on a CPU takes its input in fp32, and keeps dropout's mask in fp32 and what dropout left:
six bytes a number. Here it keeps the input as it is, which adapters beside each other share, and one byte a number;
what dropout left is computed again for the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from kbtrain.kernels.dropout import kept_places


@contextmanager
def lean_adapters(model: nn.Module) -> Iterator[None]:
    """Within it, ``model``'s adapters are lean; those that others have changed are left alone.

    To rounding the same but for dropout, whose random numbers are other ones of the same generator.
    """
    changed = list(_adapters(model))
    for layer, dropout, down in changed:
        layer.cast_input_dtype_enabled = False
        dropout.forward = lambda x: x
        down.forward = _forward(dropout, down)
    try:
        yield
    finally:
        for layer, dropout, down in changed:
            layer.cast_input_dtype_enabled = True
            del dropout.forward, down.forward


def _adapters(model: nn.Module) -> Iterator[tuple[Any, Any, Any]]:
    """Layers with one adapter, its dropout, and the product that follows it."""
    for layer in model.modules():
        downs, dropouts = getattr(layer, "lora_A", None), getattr(layer, "lora_dropout", None)
        if not isinstance(downs, nn.ModuleDict) or not isinstance(dropouts, nn.ModuleDict) or len(downs) != 1:
            continue
        ((name, down),) = downs.items()
        dropout = dropouts[name]
        plain = type(dropout) is nn.Dropout and type(down) is nn.Linear and down.bias is None
        free = plain and "forward" not in dropout.__dict__ and "forward" not in down.__dict__
        if free and getattr(layer, "cast_input_dtype_enabled", False):
            yield layer, dropout, down


def _forward(dropout: Any, down: Any) -> Callable[[Tensor], Tensor]:
    product: Any = DroppedProduct

    def forward(x: Tensor) -> Tensor:
        autocast = torch.is_autocast_enabled(x.device.type)
        dtype = torch.get_autocast_dtype(x.device.type) if autocast else down.weight.dtype
        share = dropout.p if dropout.training else 0.0
        return cast("Tensor", product.apply(x, down.weight, share, dtype))

    return forward


class DroppedProduct(torch.autograd.Function):
    """dropout(x) times the weight, computed in ``dtype``; x is (..., in), weight (out, in), the result (..., out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, share: float, dtype: torch.dtype) -> Tensor:
        kept, ctx.scale = kept_places(x, share) if share else (None, 1.0)
        ctx.dtype = dtype
        ctx.save_for_backward(x, weight, *([] if kept is None else [kept]))
        return _dropped(x, kept, ctx.scale, dtype) @ weight.to(dtype).T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight, *kept = ctx.saved_tensors
        places, grad = (kept[0] if kept else None), grads[0].to(ctx.dtype)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = _dropped(grad @ weight.to(ctx.dtype), places, ctx.scale, x.dtype)
        if ctx.needs_input_grad[1]:
            left = _dropped(x, places, ctx.scale, ctx.dtype)
            of_weight = (grad.flatten(0, -2).T @ left.flatten(0, -2)).to(weight.dtype)
        return of_x, of_weight, None, None


def _dropped(x: Tensor, kept: Tensor | None, scale: float, dtype: torch.dtype) -> Tensor:
    """``x`` where it is kept, scaled up, 0 elsewhere."""
    if kept is None:
        return x.to(dtype)
    return kept.to(dtype).mul_(scale).mul_(x)
