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
        dropped = round(self.p * _STEPS)
        if not self.training or input.device.type != "cpu" or not 0 < dropped < _STEPS:
            return super().forward(input)
        draws = torch.empty(-(-input.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        places = draws.view(torch.int16)[: input.numel()].view(input.shape)
        kept = places.ge(dropped - _STEPS // 2).to(input.dtype)
        return input * kept.mul_(_STEPS / (_STEPS - dropped))
