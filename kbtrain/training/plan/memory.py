"""Memory of one device by ZeRO stage, in bytes: weights, gradients, AdamW, activations, and what a step adds.

Without DeepSpeed weights are in fp32 (adapters: the frozen ones in 16 bits, or NF4) and products in 16 bits; under
DeepSpeed (bf16) weights and gradients have 16 bits, and AdamW keeps an fp32 copy beside its two moments. On a GPU the
fused AdamW needs no room of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
