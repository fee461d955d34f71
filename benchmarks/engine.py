"""The cost of hidden states in vLLM: requests with and without them, beside a vLLM without the connector, in one run.

Two servers of one model stand side by side: one as it is, one with the flags of ``kbtrain vllm-args``. Every kind of
request is sent in turn, and several at once, the kinds alternating, so that a busy machine is as busy for all of them.
For each kind the median time of a request and the processor time of its server for one, and their ratios.

Examples:
  python benchmarks/engine.py --vllm-python .venv-vllm/bin/python
  python benchmarks/engine.py --vllm-python .venv-vllm/bin/python --requests 100 --tokens 64
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.engine.vllm_args import serve_flags
from kbtrain.errors import UserError
from kbtrain.llm.server_requests import NoReply, ask_once
from kbtrain.models.embedded import path_of
from kbtrain.prompts.kbm import answer_prompt, encode
from kbtrain.records import Question
from kbtrain.show.text_table import aligned

ROOT = Path(__file__).resolve().parent.parent
START = 600.0  # seconds that a server may take to start on a busy machine


class EngineBenchmarkConfig(Config):
    vllm_python: Path = Field(Path(".venv-vllm/bin/python"), description="Python of the environment with vLLM")
    model: str = Field("smollm2-135m-instruct", description="embedded model")
    layers: tuple[int, ...] = Field((10, 16, 22), description="ids of the layers whose states are returned")
    requests: int = Field(40, ge=1, description="requests in turn, of each kind")
    at_once: int = Field(16, ge=1, description="requests at once, of each kind")
    rounds: int = Field(3, ge=1, description="times that so many are sent at once")
    tokens: int = Field(16, ge=1, description="longest draft whose states are returned")


Kind = tuple[str, str, dict[str, Any]]  # name, address, fields of a request


def main(config: EngineBenchmarkConfig) -> None:
    """Measure and print."""
    flags = serve_flags(config.layers)
    with vllm(config, ()) as (plain, plain_process), vllm(config, flags) as (states, states_process):
        processes = {plain: plain_process, states: states_process}
        rows = []
        for tokens in (1, config.tokens + 1):
            body = {"model": config.model, "temperature": 0, "max_tokens": tokens, "ignore_eos": True}
            wish = {"kv_transfer_params": {"kbtrain_states": {"draft_tokens": tokens - 1}}}
            kinds: list[Kind] = [
                (f"{tokens} tokens, vLLM as it is", plain, body),
                (f"{tokens} tokens, with the flags", states, body),
                (f"{tokens} tokens, with states", states, {**body, **wish}),
            ]
            rows += measure(config, kinds, processes)
        sys.stdout.write(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
        head = ["request", "in turn ms", "ratio", "cpu ms", "ratio", f"{config.at_once} at once ms", "ratio"]
        sys.stdout.write(aligned(head, rows) + "\n")


def measure(
    config: EngineBenchmarkConfig, kinds: Sequence[Kind], processes: dict[str, psutil.Process]
) -> list[list[str]]:
    """A row for each kind; ratios are to the kind before it."""
    from kbtrain.models.load import load_tokenizer  # imports torch

    tokenizer = load_tokenizer(config.model)
    numbers = iter(range(10**6))

    def prompt() -> list[int]:
        question = Question("q", f"What is the capital of place {next(numbers)}?", ("x",), "test", "t")
        return encode(tokenizer, answer_prompt(question, "llm", None))

    def send(kind: Kind, ids: list[int]) -> None:
        reply, text = ask_once(kind[1], "POST", "completions", {}, START, {**kind[2], "prompt": ids})
        if reply.status_code != 200:
            raise UserError(f"vLLM: status {reply.status_code}: {text[:200]}")

    seconds, cpu, together = (defaultdict[str, list[float]](list) for _ in range(3))
    for kind in kinds:
        send(kind, prompt())
    for _ in range(config.requests):
        for kind in kinds:
            ids, used, begin = prompt(), cpu_seconds(processes[kind[1]]), time.perf_counter()
            send(kind, ids)
            seconds[kind[0]].append(time.perf_counter() - begin)
            cpu[kind[0]].append(cpu_seconds(processes[kind[1]]) - used)
    with ThreadPoolExecutor(config.at_once) as pool:
        for _ in range(config.rounds):
            for kind in kinds:
                prompts, begin = [prompt() for _ in range(config.at_once)], time.perf_counter()
                list(pool.map(lambda ids, kind=kind: send(kind, ids), prompts))
                together[kind[0]].append(time.perf_counter() - begin)
    figures = [
        (statistics.median(seconds[name]), statistics.fmean(cpu[name]), statistics.median(together[name]))
        for name, _, _ in kinds
    ]
    rows = []
    for place, ((name, _, _), values) in enumerate(zip(kinds, figures, strict=True)):
        before = figures[max(place - 1, 0)]
        pairs = zip(values, before, strict=True)
        rows.append([name, *(text for now, then in pairs for text in (f"{1000 * now:.0f}", f"{now / then:.2f}"))])
    return rows


def cpu_seconds(process: psutil.Process) -> float:
    """Processor time of a server and its engine so far."""
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


@contextmanager
def vllm(config: EngineBenchmarkConfig, flags: Sequence[str]) -> Iterator[tuple[str, psutil.Process]]:
    """A server on a free port: its address and process. Raises :class:`UserError` for one that does not start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(config.vllm_python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(path_of(config.model)),
        "--served-model-name", config.model, "--max-model-len", "512", "--block-size", "32", "--enforce-eager",
        "--host", "127.0.0.1", "--port", str(port), *flags,
    ]  # fmt: skip
    small = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": str(ROOT)}
    quiet, url = subprocess.DEVNULL, f"http://127.0.0.1:{port}/v1"
    with subprocess.Popen(command, env={**os.environ, **small}, stdout=quiet, stderr=quiet) as process:
        try:
            wait_for(url, process)
            yield url, psutil.Process(process.pid)
        finally:
            process.terminate()


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server lists its model."""
    end = time.monotonic() + START
    while process.poll() is None and time.monotonic() < end:
        try:
            if ask_once(url, "GET", "models", {}, 5.0)[0].status_code == 200:
                return
        except NoReply:
            time.sleep(1)
    raise UserError(f"vLLM did not start in {START:.0f} s; start it by hand to see why")


if __name__ == "__main__":
    run_script(main, EngineBenchmarkConfig, __doc__)
