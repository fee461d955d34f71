"""Peer: transformers' ``generate(num_return_sequences=n)``. Arguments: model folder, dtype, questions in one call."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from loop import Answered, Job, serve
from transformers import AutoModelForCausalLM, AutoTokenizer

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def padded(prompts: list[list[int]]) -> dict[str, torch.Tensor]:
    """Ids and mask, padded on the left as ``generate`` wants it; any id serves as padding."""
    longest = max(len(ids) for ids in prompts)
    ids = [[ids[0]] * (longest - len(ids)) + ids for ids in prompts]
    mask = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def generated(tokens: torch.Tensor, end: int | None) -> int:
    """Tokens of all rows up to each one's first end token; what follows is padding."""
    if end is None:
        return tokens.numel()
    ended = (tokens == end).long().cumsum(-1)
    return int((ended - (tokens == end).long() == 0).sum())


def load(folder: str, dtype: str, at_once: str) -> Callable[[Job], Answered]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype]).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    step = int(at_once)

    def answer(job: Job) -> Answered:
        end = tokenizer.eos_token_id if job["natural_stops"] else None
        model.generation_config.eos_token_id = end
        n_tokens, start = 0, time.perf_counter()
        for first in range(0, len(job["prompts"]), step):
            inputs = padded(job["prompts"][first : first + step])
            output = model.generate(
                **inputs, num_return_sequences=job["n"], do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                max_new_tokens=job["max_new_tokens"], pad_token_id=tokenizer.eos_token_id,
            )  # fmt: skip
            new = output[:, inputs["input_ids"].shape[1] :]
            tokenizer.batch_decode(new, skip_special_tokens=True)
            n_tokens += generated(new, end)
        return {
            "seconds": time.perf_counter() - start,
            "n_prompt_tokens": sum(map(len, job["prompts"])),
            "n_answers": len(job["prompts"]) * job["n"],
            "n_tokens": n_tokens,
        }

    return answer


if __name__ == "__main__":
    serve(load)
