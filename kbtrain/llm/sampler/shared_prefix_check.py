"""Check that the shared prefix holds for a model: by its config, then measured against its own attention."""

from __future__ import annotations

import warnings
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import DynamicCache, PreTrainedModel

from kbtrain.kernels.causal_blocks import pays
from kbtrain.llm.sampler.prefill import prefill
from kbtrain.llm.sampler.shared_prefix import SharedPrefixDecoder

_TOLERANCE = 0.2  # of the logits' spread: bf16 measured 0.03 to 0.12 (Gemma 3 270M), a lost prefix 0.5 and more
_BLOCKS_TOLERANCE = 0.1
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


def prefix_sharing(model: PreTrainedModel, prompt_tokens: int, answer_tokens: int) -> tuple[bool, int | None]:
    """True if the answers to a prompt share it, and the sliding window that both must fit into for that. Warns where
    prompts of up to ``prompt_tokens`` tokens are copied, with answers of ``answer_tokens``."""
    longest, window = prompt_tokens + answer_tokens, sliding_window(model)
    problem, which = prefix_problem(model, min(longest, window or longest)), "prompts"
    shared = problem is None
    if shared and window is not None and window < longest:
        which = f"prompts of more than {max(0, window - answer_tokens)} tokens"
        problem = f"its sliding window of {window} tokens"
    if problem:
        name = model.config.name_or_path or type(model).__name__
        warnings.warn(f"model '{name}': {which} are copied for every answer (slow): {problem}", stacklevel=3)
    return shared, window


_PLAIN_LAYERS = {"DynamicLayer", "DynamicSlidingWindowLayer"}
_CANNOT = (KeyError, ValueError, TypeError, AttributeError, RuntimeError)
_HOLD: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


def blocks_hold(model: PreTrainedModel, longest: int) -> bool:
    """True if prompts of up to ``longest`` tokens may attend to themselves in blocks; asked of a model once. Their
    scores are rounded to 16 bits: with them Gemma 3's logits differ in bf16 by 0.19 of their spread."""
    window = sliding_window(model)
    if model not in _HOLD:
        try:
            _HOLD[model] = _blocks_gap(model, longest if window is None else min(longest, window)) < _BLOCKS_TOLERANCE
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
    in_blocks, whole = (prefill(model, [ids], blocks)[1].float() for blocks in (True, False))
    return _differ(in_blocks, whole)


@torch.inference_mode()
def _gap(model: PreTrainedModel) -> float:
    """Difference of next-token logits behind three answers (two of the first of two prompts) to plain passes."""
    size = model.config.get_text_config().vocab_size
    prompts = [[(7 * i + 3) % size for i in range(8)], [(5 * i + 2) % size for i in range(5)]]
    new, of_answer = [11 % size, 13 % size, 17 % size], [0, 0, 1]
    cache, _ = prefill(model, prompts)
    decoder = SharedPrefixDecoder(model, cache, [len(ids) for ids in prompts], of_answer, 2)
    decoder.step(torch.tensor(new, device=model.device))
    logits = decoder.step(torch.tensor(new, device=model.device)).float()
    whole = [[*prompts[prompt], token, token] for prompt, token in zip(of_answer, new, strict=True)]
    plain = [model(input_ids=torch.tensor([ids], device=model.device)).logits[0, -1].float() for ids in whole]
    return _differ(logits, torch.stack(plain))


def _differ(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """Root mean square difference, over the spread of the reference."""
    return float((logits - reference).square().mean().sqrt() / reference.std())
