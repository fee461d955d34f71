"""Peer: vLLM, all questions at once, prefix caching on. Runs in its own environment (``make vllm-env``).

Arguments: model folder, dtype, 1 for eager mode, answers computed at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from loop import Answered, Job, serve


def load(folder: str, dtype: str, eager: str, rows: str) -> Callable[[Job], Answered]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")  # GiB
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    llm = LLM(
        model=folder, dtype={"bf16": "bfloat16", "fp32": "float32"}[dtype], enforce_eager=eager == "1",
        enable_prefix_caching=True, max_model_len=2048, max_num_seqs=int(rows),
    )  # fmt: skip

    def answer(job: Job) -> Answered:
        how = SamplingParams(
            n=job["n"], temperature=1.0, top_k=0, top_p=1.0, max_tokens=job["max_new_tokens"],
            ignore_eos=not job["natural_stops"],
        )  # fmt: skip
        prompts = [TokensPrompt(prompt_token_ids=ids) for ids in job["prompts"]]
        if not llm.reset_prefix_cache():  # else a second round would find the prompts of the first
            raise RuntimeError("the prefix cache could not be emptied")
        start = time.perf_counter()
        outputs = llm.generate(prompts, how, use_tqdm=False)
        seconds = time.perf_counter() - start
        answers = [answer for output in outputs for answer in output.outputs]
        return {
            "seconds": seconds,
            "n_prompt_tokens": sum(len(output.prompt_token_ids or ()) for output in outputs),
            "n_answers": len(answers),
            "n_tokens": sum(len(answer.token_ids) for answer in answers),
        }

    return answer


if __name__ == "__main__":
    serve(load)
