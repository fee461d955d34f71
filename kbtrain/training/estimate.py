"""What a training will take, said before it starts: steps, tokens, operations, memory of weights and optimiser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kbtrain.errors import UserError


@dataclass(frozen=True)
class Estimate:
    """``operations``: 6 a parameter and token (4 for LoRA, whose weights need no gradient), attention not counted.

    ``state_gb``: weights, gradients and AdamW's two moments per device in GB (10^9 bytes), activations not counted.
    """

    steps: int
    tokens: int
    shortest: int
    median: int
    longest: int
    operations: float
    state_gb: float


def estimate(
    lengths: Sequence[int], epochs: float, group: int, parameters: int, trained: int, shards: int = 1
) -> Estimate:
    """``group``: rows a step over all devices; ``shards``: devices that ZeRO-2 spreads gradients and moments over."""
    ordered = sorted(lengths)
    tokens = round(sum(ordered) * epochs)
    per_token = 6 if trained == parameters else 4
    weights = 2 if shards > 1 else 4  # DeepSpeed's bf16 copy; its fp32 one is among what is spread
    spread = (2 + 12 if shards > 1 else 12) * trained / shards
    return Estimate(
        steps=count_steps(len(ordered), group, epochs),
        tokens=tokens,
        shortest=ordered[0],
        median=ordered[len(ordered) // 2],
        longest=ordered[-1],
        operations=per_token * parameters * tokens,
        state_gb=(weights * parameters + spread) / 1e9,
    )


def count_steps(rows: int, group: int, epochs: float) -> int:
    """Steps of ``group`` rows each, the last of an epoch perhaps of fewer."""
    return math.ceil(math.ceil(rows / group) * epochs)


def open_without_weights(model: str) -> tuple[Any, Any]:
    """A model whose weights take no memory (meta device), and its tokenizer. Raises :class:`UserError`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from kbtrain.models.load import resolve

    where = resolve(model)
    try:
        config = AutoConfig.from_pretrained(where)
        tokenizer = AutoTokenizer.from_pretrained(where)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config), tokenizer
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(f"model '{model}': cannot be opened ({first[:200]})") from None
