"""Greedy answers of a batch by transformers' ``generate``, watched: the chosen token's logit and probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from kbtrain.kernels.fp32_output_layer import fp32_output_layer
from kbtrain.llm.sampler.sampler import eos_ids


@dataclass(frozen=True)
class Generated:
    """A greedy answer: the least logit and probability of its tokens, without the end token; None if it is empty."""

    text: str
    n_tokens: int
    minimum_logit: float | None
    minimum_probability: float | None


class _Chosen(LogitsProcessor):
    """The best logit of each step and its probability; greedy decoding takes that token. (rows,) a step."""

    def __init__(self) -> None:
        self.logits: list[torch.Tensor] = []
        self.probabilities: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        best = scores.amax(dim=-1)
        self.logits.append(best)
        self.probabilities.append((best - scores.logsumexp(dim=-1)).exp())
        return scores


@torch.inference_mode()
def greedy(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> list[Generated]:
    """One answer a prompt. Logits are fp32 (the output layer is computed so), of the model as it is: its
    own generation settings (penalties, temperature) are not used."""
    ends = sorted(eos_ids(model, tokenizer))
    pad = ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    settings = GenerationConfig(
        do_sample=False, num_beams=1, repetition_penalty=1.0, max_new_tokens=max_new_tokens, eos_token_id=ends,
        pad_token_id=pad,
    )  # fmt: skip
    recorder, generation_config = _Chosen(), model.generation_config
    anything: Any = model
    anything.generation_config = settings  # generate() fills what is not set from the model's own
    try:
        with fp32_output_layer(model):
            outputs: Any = anything.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=settings,
                logits_processor=LogitsProcessorList([recorder]),
            )
    finally:
        anything.generation_config = generation_config
    logits = torch.stack(recorder.logits, dim=1)
    probabilities = torch.stack(recorder.probabilities, dim=1)
    answers = [row[width:].tolist() for row in outputs]
    return [_generated(tokenizer, a, logits[i], probabilities[i], set(ends)) for i, a in enumerate(answers)]


def _generated(
    tokenizer: PreTrainedTokenizerBase,
    answer: list[int],
    logits: torch.Tensor,
    probabilities: torch.Tensor,
    ends: set[int],
) -> Generated:
    n = next((i for i, token in enumerate(answer) if token in ends), len(answer))
    text = str(tokenizer.decode(answer[:n], skip_special_tokens=True)).strip()
    if n == 0:
        return Generated("", 0, None, None)
    return Generated(text, n, round(float(logits[:n].min()), 6), round(float(probabilities[:n].min()), 8))
