"""The output layer in fp32, for selected tokens only.

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
    """Context in which the model's logits are fp32; with ``tokens`` only theirs, in that order.

    Later steps (scaling, soft caps) treat each logit alone, so a selection does not change them.
    """
    head: Any = model.get_output_embeddings()
    patched = head.__dict__.get("forward")

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        weight, bias = head.weight, getattr(head, "bias", None)
        if tokens is not None:
            rows = list(tokens)
            weight, bias = weight[rows], None if bias is None else bias[rows]
        with torch.autocast(hidden.device.type, enabled=False):
            exact_bias = None if bias is None else bias.float()
            return torch.nn.functional.linear(hidden.float(), weight.float(), exact_bias)

    head.forward = forward
    try:
        yield
    finally:
        if patched is None:
            del head.forward
        else:
            head.forward = patched
