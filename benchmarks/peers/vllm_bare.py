"""Peer: a script as anybody writes it for vLLM. Arguments: the job's file, and a server's address to use that instead.

Prints seconds, answers and tokens of n drawn answers and a greedy one to each prompt.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

WARM_UP = 4  # prompts of other tokens
STOP = ["\n"]


def offline(job: dict[str, Any]) -> dict[str, float]:
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.platforms import current_platform

    dtype = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16"}[job["dtype"]]
    llm = LLM(model=job["model"], dtype=dtype, enforce_eager=job["eager"], max_model_len=job["max_model_len"],
              enable_prefix_caching=True, generation_config="vllm")  # fmt: skip
    more = {"max_tokens": job["max_new_tokens"], "stop": STOP}

    def parameters(i: int) -> list[Any]:
        drawn = {"n": job["n"], "temperature": 1.0, **({} if current_platform.is_cpu() else {"seed": i})}
        return [SamplingParams(temperature=0.0, **more), SamplingParams(**drawn, **more)]

    prompts = [TokensPrompt(prompt_token_ids=ids) for ids in job["ids"] for _ in range(2)]
    how = [one for i in range(len(job["ids"])) for one in parameters(i)]
    warm = [TokensPrompt(prompt_token_ids=ids[::-1]) for ids in job["ids"][:WARM_UP]]
    llm.generate(warm, how[1::2][: len(warm)], use_tqdm=False)
    begin = time.perf_counter()
    outputs = llm.generate(prompts, how, use_tqdm=False)
    seconds = time.perf_counter() - begin
    lengths = [len(answer.token_ids) for output in outputs for answer in output.outputs]
    return {"seconds": seconds, "n_answers": len(lengths), "n_tokens": sum(lengths)}


def through(url: str, job: dict[str, Any]) -> dict[str, float]:
    """As many requests at once as fill the engine; the server's prefix cache is emptied first."""

    def ask(path: str, body: dict[str, Any] | None) -> Any:
        data, kind = json.dumps(body).encode(), {"content-type": "application/json"}
        request = urllib.request.Request(path, data, kind)  # noqa: S310
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as reply:
            text = reply.read()
            return json.loads(text) if text else None

    root = url.removesuffix("/v1")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}/models") as reply:
        model = json.load(reply)["data"][0]["id"]
    more = {"model": model, "max_tokens": job["max_new_tokens"], "stop": STOP}
    drawn = {"n": job["n"], "temperature": 1.0, **more}
    for ids in job["ids"][:WARM_UP]:
        ask(f"{url}/completions", {"prompt": ids[::-1], **drawn})
    ask(f"{root}/reset_prefix_cache", None)
    bodies = [{"prompt": ids, **how} for ids in job["ids"] for how in ({"temperature": 0.0, **more}, drawn)]
    begin = time.perf_counter()
    with ThreadPoolExecutor(64) as pool:
        replies = list(pool.map(lambda body: ask(f"{url}/completions", body), bodies))
    seconds = time.perf_counter() - begin
    ask(f"{root}/reset_prefix_cache", None)
    usage = [reply["usage"]["completion_tokens"] for reply in replies]
    return {"seconds": seconds, "n_answers": sum(len(reply["choices"]) for reply in replies), "n_tokens": sum(usage)}


if __name__ == "__main__":
    work = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps(through(sys.argv[2], work) if len(sys.argv) > 2 else offline(work)))
