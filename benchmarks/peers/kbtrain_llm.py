"""Peer: this project's sampler, as ``data_gen/sample.py`` runs it. Arguments: model folder, dtype, batch limits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from loop import Answered, Job, serve

from kbtrain.io import jsonl
from kbtrain.llm.base import AnswerRequest, Sampling
from kbtrain.llm.transformers_llm import TransformersLLM
from kbtrain.models.batching import BatchLimits
from kbtrain.models.load import load_model
from kbtrain.records import Question


def load(folder: str, dtype: str, rows: str, prompt_tokens: str) -> Callable[[Job], Answered]:
    model, tokenizer = load_model(folder, dtype, "cpu")
    limits = BatchLimits(rows=int(rows), prompt_tokens=int(prompt_tokens))
    opened: dict[tuple[bool, int], TransformersLLM] = {}  # one for all jobs of a kind, as one serves a whole run
    ends = (model.generation_config.eos_token_id, model.config.eos_token_id, tokenizer.eos_token)

    def answer(job: Job) -> Answered:
        # a model that knows no end token goes on to the last one
        chosen = ends if job["natural_stops"] else (None, None, None)
        model.generation_config.eos_token_id, model.config.eos_token_id, tokenizer.eos_token = chosen
        kind = job["natural_stops"], job["max_new_tokens"]
        if kind not in opened:
            sampling = Sampling(max_new_tokens=job["max_new_tokens"], stop=())
            opened[kind] = TransformersLLM(folder, model, tokenizer, sampling, limits)
        requests = [
            AnswerRequest(
                jsonl.record(Question, json.loads(line), "job", 1),
                "llm" if text is None else "rag",
                text,
                job["n"],
                greedy=False,
            )
            for line, text in zip(job["questions"], job["evidence"], strict=True)
        ]
        for sampler in (opened[kind]._sampler, *opened[kind]._replicas):
            sampler._prefix = None  # else a second round would find what its prompts begin with
        start = time.perf_counter()
        sets = [made for group in opened[kind].answer(requests) for made in group]
        seconds = time.perf_counter() - start
        samples = [sample for made in sets for sample in made.samples]
        return {
            "seconds": seconds,
            "n_prompt_tokens": sum(made.prompt_tokens for made in sets),
            "n_answers": len(samples),
            "n_tokens": sum(sample.n_tokens for sample in samples),
        }

    return answer


if __name__ == "__main__":
    serve(load)
