"""The output layer in fp32 and for the wanted tokens only.

A logit of 20 in bf16 has steps of 0.125, so that p(True) would come in steps of 0.03 and close questions would tie.
The rest of the model may well compute in bf16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel


@contextmanager
def fp32_output_layer(model: PreTrainedModel, tokens: Sequence[int] | None = None) -> Iterator[None]:
    """Within it, the model's logits are fp32; with ``tokens`` they are these tokens' only, in their order.

    What a model does to logits afterwards (scaling, soft caps) is done to each alone, and so still holds.
    """
    head: Any = model.get_output_embeddings()
    before = head.__dict__.get("forward")

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        weight, bias = head.weight, getattr(head, "bias", None)
        if tokens is not None:
            chosen = list(tokens)
            weight, bias = weight[chosen], None if bias is None else bias[chosen]
        with torch.autocast(hidden.device.type, enabled=False):
            exact_bias = None if bias is None else bias.float()
            return torch.nn.functional.linear(hidden.float(), weight.float(), exact_bias)

    head.forward = forward
    try:
        yield
    finally:
        if before is None:
            del head.forward
        else:
            head.forward = before
