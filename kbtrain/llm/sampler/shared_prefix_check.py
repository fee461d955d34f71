"""Check that the shared prefix holds for a model: by its config, then measured against its own attention."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import DynamicCache, PreTrainedModel

from kbtrain.kernels.causal_blocks import pays
from kbtrain.llm.sampler.prefill import prefill
from kbtrain.llm.sampler.shared_prefix import SharedPrefixDecoder

_TOLERANCE = 0.1  # of the logits' spread: bf16 rounding measured 0.03, a lost prefix 0.5 and more
_BLOCKS = 300  # tokens of a prompt that takes several blocks


def prefix_problem(model: PreTrainedModel, longest: int) -> str | None:
    """Reason why prompts and answers of up to ``longest`` tokens cannot share a prefix here, or None if they can."""
    window = sliding_window(model)
    if window is not None and longest > window:
        return f"its sliding window of {window} tokens is shorter than prompt and answer together ({longest})"
    if not all(type(layer).__name__ in _PLAIN_LAYERS for layer in DynamicCache(config=model.config).layers):
        return "its layers keep more than keys and values of every token"
    try:
        gap = _gap(model)
    except _CANNOT as error:
        return f"its attention cannot be replaced ({str(error).splitlines()[0][:100]})"
    return None if gap < _TOLERANCE else f"its logits differ from its own attention's by {gap:.2f} of their spread"


_PLAIN_LAYERS = {"DynamicLayer", "DynamicSlidingWindowLayer"}
_CANNOT = (KeyError, ValueError, TypeError, AttributeError, RuntimeError)
_HOLD: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


def blocks_hold(model: PreTrainedModel, longest: int) -> bool:
    """True if prompts of up to ``longest`` tokens may attend to themselves in blocks; asked of a model once.

    The scores of blocks are rounded to 16 bits: Gemma 3's are large, so that its logits come out otherwise in bf16.
    """
    window = sliding_window(model)
    if model not in _HOLD:
        try:
            _HOLD[model] = _blocks_gap(model, longest if window is None else min(longest, window)) < _TOLERANCE
        except _CANNOT:
            _HOLD[model] = False
    return _HOLD[model]


def sliding_window(model: PreTrainedModel) -> int | None:
    """The smallest window that a layer really uses (Qwen2 names one that it switches off)."""
    layers: list[Any] = DynamicCache(config=model.config).layers
    windows = [layer.sliding_window for layer in layers if getattr(layer, "is_sliding", False)]
    return min(windows, default=None)


@torch.inference_mode()
def _blocks_gap(model: PreTrainedModel, longest: int) -> float:
    """Difference of the next token's logits with a prompt's attention in blocks, where that would be used."""
    size = model.config.get_text_config().vocab_size
    ids = [(7 * i * i + 3) % size for i in range(min(longest, _BLOCKS))]
    if not pays(model, len(ids)):
        return 0.0
    ours, theirs = (prefill(model, [ids], blocks)[1].float() for blocks in (True, False))
    return float((ours - theirs).square().mean().sqrt() / theirs.std())


@torch.inference_mode()
def _gap(model: PreTrainedModel) -> float:
    """Root mean square difference of next-token logits to one plain pass, over the logits' spread."""
    size = model.config.get_text_config().vocab_size
    prompts = [[(7 * i + 3) % size for i in range(8)], [(5 * i + 2) % size for i in range(5)]]
    new = [(11 % size), (13 % size), (17 % size)]
    cache, _ = prefill(model, prompts)
    decoder = SharedPrefixDecoder(model, cache, [8, 5], [0, 0, 1], 2)
    decoder.step(torch.tensor(new, device=model.device))
    ours = decoder.step(torch.tensor(new, device=model.device)).float()
    whole = [[*prompts[0], new[0], new[0]], [*prompts[0], new[1], new[1]], [*prompts[1], new[2], new[2]]]
    plain = [model(input_ids=torch.tensor([ids], device=model.device)).logits[0, -1].float() for ids in whole]
    theirs = torch.stack(plain)
    return float((ours - theirs).square().mean().sqrt() / theirs.std())
