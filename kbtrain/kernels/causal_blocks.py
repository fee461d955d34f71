"""Attention of a prompt to itself by plain matrix products, block by block of queries; and a shorter last layer.

For CPUs on which the fused kernel is slow: plain products run at the processor's 16-bit rate, and in blocks the scores
stay in its cache. Without a mask only for prompts padded on the right or not at all. The last layer's attention, output
and MLP are skipped at positions whose states are not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from kbtrain.models.load import fused_attention_is_slow


@dataclass(frozen=True)
class _NeededStates:
    layer: int
    places: torch.Tensor  # (n,) of the tokens that are fed, rising


_NEEDED: ContextVar[_NeededStates | None] = ContextVar("kbtrain_needed_states", default=None)


@contextmanager
def only(model: PreTrainedModel, places: torch.Tensor) -> Iterator[None]:
    """Context in which the last layer computes the states at ``places`` (n,) only, the same in every row of a batch.
    For the Llama family, whose MLP is a module ``mlp`` of its layer."""
    layers: Any = model.get_decoder().layers
    mlp = layers[-1].mlp
    patched = mlp.__dict__.get("forward")
    mlp_forward = mlp.forward

    def forward(states: torch.Tensor) -> torch.Tensor:
        outputs = torch.zeros_like(states)
        outputs[:, places] = mlp_forward(states[:, places])
        return outputs

    mlp.forward = forward
    token = _NEEDED.set(_NeededStates(len(layers) - 1, places.sort().values))
    try:
        yield
    finally:
        _NEEDED.reset(token)
        if patched is None:
            del mlp.forward
        else:
            mlp.forward = patched


def unread(module: Any, start: int, end: int) -> bool:
    """True if no requested position is in ``[start, end)`` of the fed tokens."""
    needed = _NEEDED.get()
    if needed is None or module.layer_idx != needed.layer:
        return False
    return not bool(((needed.places >= start) & (needed.places < end)).any())


NAME = "kbtrain_causal_blocks"
BLOCK = 128  # queries a block; between 64 and 256 it makes no difference
_FAMILIES = {"llama", "mistral", "qwen2", "qwen3"}
_LONG = 96  # tokens from which blocks are faster than the fused kernel


def causal_blocks_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function. ``query`` (prompts, heads, length, size), ``key``/``value`` with kv heads,
    before which more keys may stand. ``attention_mask`` (prompts, 1, length, keys) is added to the scores."""
    prompts, heads, length, size = query.shape
    kv_heads, n_cached = key.shape[1], key.shape[2] - length
    scale = size**-0.5 if scaling is None else scaling
    grouped = query.view(prompts, kv_heads, -1, length, size)
    above = future(query)
    outputs = query.new_empty(prompts, length, heads, value.shape[-1])
    for p in range(prompts):
        # every block but the last ends at a multiple of its size: softmax is slower over rows of odd lengths
        for start in (0, *range(BLOCK - n_cached % BLOCK, length, BLOCK)):
            end = min(length, start + BLOCK - (n_cached + start) % BLOCK)
            if unread(module, start, end):
                outputs[p, start:end] = 0
                continue
            n, n_keys = end - start, n_cached + end
            # the heads that share a kv head become rows of one product
            rows = query.new_empty(kv_heads, heads // kv_heads, n, size)
            torch.mul(grouped[p, :, :, start:end], scale, out=rows)
            bias = above[:n, :n] if attention_mask is None else attention_mask[p, 0, start:end, :n_keys]
            output = causal_weights(rows.flatten(1, 2), key[p, :, :n_keys], bias) @ value[p, :, :n_keys]
            outputs[p, start:end] = output.view(heads, n, -1).transpose(0, 1)
    return outputs, None


def future(like: torch.Tensor) -> torch.Tensor:
    """(BLOCK, BLOCK): -inf where a key is after the query; type and device of ``like``."""
    return torch.full((BLOCK, BLOCK), float("-inf"), dtype=like.dtype, device=like.device).triu(1)


def causal_weights(rows: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Softmax of (kv heads, group * n, size) against (kv heads, seen, size), the last n of which are the rows' own;
    ``bias`` is added to the scores of the last keys: the (n, n) corner of :func:`future`, or a mask's (n, seen)."""
    scores = rows @ keys.transpose(1, 2)
    n, last = bias.shape
    scores.view(len(rows), -1, n, keys.shape[1])[..., -last:] += bias
    return torch.softmax(scores, dim=-1, out=scores)


AttentionInterface.register(NAME, causal_blocks_attention)


def pays(model: PreTrainedModel, length: int, least: int = _LONG) -> bool:
    """True if this model's own attention over ``length`` tokens is the fused kernel in its slow case."""
    slow = fused_attention_is_slow(model.device.type, model.dtype)
    return slow and length >= least and model.config._attn_implementation == "sdpa"


def plain(model: PreTrainedModel) -> bool:
    """True if scores are products of queries and keys and nothing else: no soft caps, sinks or position biases."""
    return model.config.get_text_config().model_type in _FAMILIES


@contextmanager
def causal_blocks(model: PreTrainedModel, read: torch.Tensor | None = None) -> Iterator[None]:
    """Context in which the model, which must have no soft caps, attends in blocks to all earlier tokens. ``read`` (n,):
    positions among the fed tokens whose last states are used, in every row; None: all."""
    implementation = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        with nullcontext() if read is None or not plain(model) else only(model, read):
            yield
    finally:
        model.set_attn_implementation(implementation)
