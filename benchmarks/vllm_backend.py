"""What `kbtrain run sample` costs on top of vLLM: the same prompts by a bare script, by the stage offline, and by it
through a vLLM server. Each in its own process, one after the other, with a warm-up that is not counted.

Seconds are those from the open engine to the last stored answer. Needs vLLM's environment (make vllm-env). Seeds are
given where vLLM can take them: its CPU build cannot.

Examples:
  python benchmarks/vllm_backend.py
  python benchmarks/vllm_backend.py --questions 24 --n 5 --peers "[bare, offline]"
  python benchmarks/vllm_backend.py --peers "[bare, offline, states]"
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from sampling_prompts import long_prompts, short_prompts
from transformers import AutoTokenizer

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.models.load import resolve
from kbtrain.records import Evidence, Hit

HERE = Path(__file__).resolve().parent
Name = Literal["bare", "offline", "client", "server", "states"]
WHAT: dict[Name, str] = {
    "bare": "bare vLLM, offline",
    "offline": "kbtrain run sample, offline",
    "client": "bare client of a vLLM server",
    "server": "kbtrain run sample through the server",
    "states": "kbtrain run sample, offline, with keep_states",
}


class VllmBenchmarkConfig(Config):
    model: str = Field("smollm2-135m-instruct", description="embedded name or local folder")
    dtype: Literal["bf16", "fp32", "fp16"] = Field("bf16", description="number format, the same for all")
    questions: int = Field(300, ge=1, description="prompts")
    n: int = Field(30, ge=1, description="drawn answers to each, beside the greedy one")
    max_new_tokens: int = Field(24, ge=1, description="longest answer, in tokens")
    prompt_tokens: int = Field(0, ge=0, description="length to fill prompts with passages; 0: questions alone")
    peers: tuple[Name, ...] = Field(("bare", "offline", "client", "server"), description="what is measured, in order")
    eager: bool = Field(True, description="vLLM without torch.compile")
    python: Path = Field(Path(".venv-vllm/bin/python"), description="of vLLM's environment")
    port: int = Field(18431, description="of the server")
    output: Path = Field(Path("runs/bench/vllm_backend.json"), description="where the numbers go")


def main(config: VllmBenchmarkConfig) -> None:
    if not config.python.exists():
        raise UserError(f"{config.python}: not there; make vllm-env")
    config.output.parent.mkdir(parents=True, exist_ok=True)
    folder = resolve(config.model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    count = config.questions
    prompts = (
        long_prompts(tokenizer, count, config.prompt_tokens)
        if config.prompt_tokens
        else short_prompts(tokenizer, count)
    )
    job = {"model": folder, "dtype": config.dtype, "eager": config.eager, "ids": prompts.ids, "n": config.n,
           "max_new_tokens": config.max_new_tokens, "max_model_len": longest(config)}  # fmt: skip
    measured: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as servers:
        (Path(scratch) / "job.json").write_text(json.dumps(job))
        url = None
        for name in config.peers:
            if name in ("client", "server") and url is None:
                url = servers.enter_context(server(config, folder))
            run = Path(scratch) / name
            make_run(run, prompts)
            measured[name] = measure(config, name, run, url)
            print(row(name, measured[name], measured.get("bare")), flush=True)
    about = {"config": config.model_dump(mode="json"), "peers": measured}
    config.output.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def longest(config: VllmBenchmarkConfig) -> int:
    """Tokens of the longest prompt and its answer."""
    return max(512, config.prompt_tokens + 128) + config.max_new_tokens


def make_run(run: Path, prompts: Any) -> None:
    """A run folder of these questions."""
    run.mkdir()
    jsonl.write(run / "questions.jsonl", prompts.questions)
    found = ((Hit("p", "", text, 1.0),) if text else () for text in prompts.evidence)
    evidence = [Evidence(q.id, "bm25", q.text, hits) for q, hits in zip(prompts.questions, found, strict=True)]
    jsonl.write(run / "evidence.jsonl", evidence)


def measure(config: VllmBenchmarkConfig, name: Name, run: Path, url: str | None) -> dict[str, float]:
    """Seconds, answers and tokens of one peer."""
    python, peer = str(config.python), HERE / "peers" / "vllm_stage.py"
    if name in ("bare", "client"):
        command = [
            python,
            str(HERE / "peers" / "vllm_bare.py"),
            str(run.parent / "job.json"),
            *([url] if url and name == "client" else []),
        ]
    else:
        where = ["--backend", "vllm", "--vllm-extra", json.dumps({"enforce_eager": config.eager})]
        if name == "server":
            python, where = sys.executable, ["--backend", "openai", "--server-url", str(url), *NO_SEED]
        command = [
            python, str(peer), "--run", str(run), "--model", config.model, 
            "--conditions", "[rag]" if config.prompt_tokens else "[llm]",
            "--dtype", config.dtype,
            "--samples", json.dumps(dict.fromkeys(("train", "dev", "test"), config.n)),
            "--max-new-tokens", str(config.max_new_tokens),
            "--max-prompt-tokens", str(longest(config) - config.max_new_tokens),
            "--keep-states", str(name == "states").lower(), *where,
        ]  # fmt: skip
    environment = os.environ | VARIABLES | {"PYTHONPATH": str(HERE.parent)}
    log = config.output.parent / f"vllm_{name}.log"
    with log.open("w") as errors:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, check=False)
    if done.returncode:
        raise UserError(f"peer '{name}' ended with code {done.returncode}; see {log}")
    found: dict[str, float] = json.loads(
        next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{"))
    )
    if name not in ("bare", "client"):
        with SampleStore(run / "samples.db", read_only=True) as store:
            answers = [sample for made in store.iterate("main") for sample in made.answers()]
        found |= {"n_answers": len(answers), "n_tokens": sum(answer.n_tokens for answer in answers)}
    return found


VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "2"), "VLLM_NO_USAGE_STATS": "1",
             "VLLM_SERVER_DEV_MODE": "1", "NO_PROXY": "127.0.0.1"}  # fmt: skip
NO_SEED = ("--server-extra", "{seed: null}")  # the CPU build dies of them


@contextlib.contextmanager
def server(config: VllmBenchmarkConfig, folder: str) -> Iterator[str]:
    """A vLLM server; yields its address. With its development routes, by which the prefix cache is emptied."""
    root = f"http://127.0.0.1:{config.port}"
    dtype = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16"}[config.dtype]
    command = [
        str(config.python), "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--served-model-name",
        config.model, "--dtype", dtype, "--max-model-len", str(longest(config)), "--host", "127.0.0.1", "--port",
        str(config.port), *(["--enforce-eager"] if config.eager else []),
    ]  # fmt: skip
    with (config.output.parent / "vllm_api.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | VARIABLES)
        try:
            while process.poll() is None:
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{root}/health", timeout=5):  # noqa: S310
                    break
                time.sleep(1)
            else:
                raise UserError(f"the vLLM server ended; see {log.name}")
            yield f"{root}/v1"
        finally:
            process.terminate()
            process.wait()


def row(name: Name, found: dict[str, float], bare: dict[str, float] | None) -> str:
    """One peer: seconds, throughput, and the latter as a share of bare vLLM's."""
    text = f"{WHAT[name]:48} {found['seconds']:8.1f} s  {found['n_answers'] / found['seconds']:8.2f} answers/s  "
    text += f"{found['n_tokens'] / found['seconds']:9.1f} tokens/s"
    if bare is None:
        return text
    shares = [found[of] / found["seconds"] / (bare[of] / bare["seconds"]) for of in ("n_answers", "n_tokens")]
    return f"{text}  {shares[0]:6.1%} of bare vLLM's answers, {shares[1]:.1%} of its tokens"


if __name__ == "__main__":
    run_script(main, VllmBenchmarkConfig, __doc__)
