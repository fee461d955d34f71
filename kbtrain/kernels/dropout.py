"""Dropout whose random numbers cost a CPU a quarter of the time (torch draws them one by one, in one thread)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_STEPS = 2**16  # of a probability


class Dropout(nn.Dropout):
    """As ``nn.Dropout``, with a probability rounded to 1/65,536. On a CPU one 64-bit draw of torch's generator serves
    four numbers."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Zeros at random places while training, what is kept scaled up; same shape and type as ``input``."""
        if not self.training or input.device.type != "cpu" or not 0 < round(self.p * _STEPS) < _STEPS:
            return super().forward(input)
        kept, scale = kept_places(input, self.p)
        return input * kept.to(input.dtype).mul_(scale)


def kept_places(x: Tensor, p: float) -> tuple[Tensor, float]:
    """Where a dropout of probability ``p`` (below 1) keeps ``x``'s numbers, and what these are multiplied with."""
    if x.device.type != "cpu":
        return torch.empty(x.shape, dtype=torch.bool, device=x.device).bernoulli_(1 - p), 1 / (1 - p)
    dropped, n = round(p * _STEPS), x.numel()
    draws = torch.empty(-(-n // 4), dtype=torch.int64).random_(-(2**63), None)
    return draws.view(torch.int16)[:n].view(x.shape).ge(dropped - _STEPS // 2), _STEPS / (_STEPS - dropped)
