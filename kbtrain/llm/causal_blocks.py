"""A prompt's attention to itself by plain matrix products, block by block of queries.

For CPUs on which the fused kernel is slow: plain products run at the processor's 16-bit rate, and in blocks the scores
stay in its cache. Only for prompts padded on the right or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from kbtrain.llm.precision import fused_attention_is_slow

NAME = "kbtrain_causal_blocks"
BLOCK = 128  # queries a block; between 64 and 256 it makes no difference
_LONG = 256  # tokens from which blocks are faster than the fused kernel


def causal_blocks_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function. ``query`` (prompts, heads, length, size), ``key``/``value`` with kv heads.

    Keys may be more than queries: then every query sees those that stand before."""
    prompts, heads, length, size = query.shape
    kv_heads, before = key.shape[1], key.shape[2] - length
    scale = size**-0.5 if scaling is None else scaling
    grouped = query.view(prompts, kv_heads, -1, length, size)
    above = future(query)
    made = query.new_empty(prompts, length, heads, value.shape[-1])
    for p in range(prompts):
        # every block but the last ends at a multiple of its size: softmax is slower over rows of odd lengths
        for start in (0, *range(BLOCK - before % BLOCK, length, BLOCK)):
            end = min(length, start + BLOCK - (before + start) % BLOCK)
            n, seen = end - start, before + end
            # the heads that share a kv head become rows of one product
            rows = query.new_empty(kv_heads, heads // kv_heads, n, size)
            torch.mul(grouped[p, :, :, start:end], scale, out=rows)
            output = causal_weights(rows.flatten(1, 2), key[p, :, :seen], above[:n, :n]) @ value[p, :, :seen]
            made[p, start:end] = output.view(heads, n, -1).transpose(0, 1)
    return made, None


def future(like: torch.Tensor) -> torch.Tensor:
    """(BLOCK, BLOCK): -inf where a query stands before a key; type and device of ``like``."""
    return torch.full((BLOCK, BLOCK), float("-inf"), dtype=like.dtype, device=like.device).triu(1)


def causal_weights(rows: torch.Tensor, keys: torch.Tensor, above: torch.Tensor) -> torch.Tensor:
    """Softmax of (kv heads, group * n, size) against (kv heads, seen, size), the last n of which are the rows' own;
    ``above`` is the (n, n) corner of :func:`future`."""
    scores = rows @ keys.transpose(1, 2)
    n = len(above)
    scores.view(len(rows), -1, n, keys.shape[1])[..., -n:] += above
    return torch.softmax(scores, dim=-1, out=scores)


AttentionInterface.register(NAME, causal_blocks_attention)


def pays(model: PreTrainedModel, length: int) -> bool:
    """Whether this model's own attention over ``length`` tokens is the fused kernel in its slow case."""
    slow = fused_attention_is_slow(model.device.type, model.dtype)
    return slow and length >= _LONG and model.config._attn_implementation == "sdpa"


@contextmanager
def causal_blocks(model: PreTrainedModel) -> Iterator[None]:
    """Within it, the model attends in blocks, to all that stands before; there must be no padding and no soft caps."""
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
