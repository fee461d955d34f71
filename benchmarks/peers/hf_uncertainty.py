"""Peer: the straightforward way with transformers alone, one prompt at a time.

A greedy answer with ``generate``, n samples with ``generate(num_return_sequences=n, output_hidden_states=True)``, then
one pass over prompt, answer and end token of each sample with a hook on the middle layer's MLP.
Arguments: model folder, dtype.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from loop import serve
from transformers import AutoModelForCausalLM, AutoTokenizer

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
ALPHA = 1e-3


def load(folder: str, dtype: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype]).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    end, layers = tokenizer.eos_token_id, model.model.layers
    model.generation_config.eos_token_id = end
    caught: list[torch.Tensor] = []
    layers[len(layers) // 2 - 1].mlp.register_forward_hook(lambda module, args, output: caught.append(output))

    @torch.inference_mode()
    def uncertainty(ids: list[int], n: int, longest: int) -> tuple[float, int]:
        prompt = torch.tensor([ids])
        mask = torch.ones_like(prompt)
        plain: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": longest, "pad_token_id": end}
        greedy = model.generate(prompt, do_sample=False, **plain)
        drawn = model.generate(
            prompt, do_sample=True, temperature=1.0, top_k=50, top_p=0.9, num_return_sequences=n,
            output_hidden_states=True, return_dict_in_generate=True, **plain,
        ).sequences  # fmt: skip
        closed, n_tokens = [], len(greedy[0]) - len(ids)
        for row in drawn.tolist():
            answer = row[len(ids) :]
            said = answer.index(end) if end in answer else len(answer)
            n_tokens += min(said + 1, len(answer))
            closed.append([*ids, *answer[:said], end])
        width = max(map(len, closed))
        batch = torch.tensor([[*row, *([end] * (width - len(row)))] for row in closed])
        caught.clear()
        model(input_ids=batch)
        states = caught[-1][torch.arange(n), torch.tensor([len(row) - 1 for row in closed])].double().numpy()
        z = states - states.mean(axis=1, keepdims=True)
        return float(np.linalg.slogdet(z @ z.T + ALPHA * np.eye(n))[1]) / n, n_tokens

    def answer(job: dict[str, Any]) -> dict[str, Any]:
        start = time.perf_counter()
        found = [uncertainty(ids, job["n"], job["max_new_tokens"]) for ids in job["prompts"]]
        return {
            "seconds": time.perf_counter() - start,
            "n_questions": len(found),
            "n_prompt_tokens": sum(map(len, job["prompts"])),
            "n_tokens": sum(tokens for _, tokens in found),
            "uncertainties": [u for u, _ in found],
        }

    return answer


if __name__ == "__main__":
    serve(load)
