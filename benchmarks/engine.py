"""Cost of gates that read vLLM's hidden states: of a decision, of the answer after it, and of the engine's flags.

Two vLLM of one model run side by side: one as it is, one with the flags of ``kbtrain vllm-args``. Before the first
stand gates that open a copy of the model (two engines), before the second gates that read its states (one). The gates
are a probe and a draft probe with random heads; no request searches. Kinds of requests alternate in an order that
changes, so that a busy machine is as busy for all of them. Every prompt is new.

Examples:
  python benchmarks/engine.py
  python benchmarks/engine.py --requests 10 --rounds 1
"""

from __future__ import annotations

import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.engine.vllm_args import serve_flags
from kbtrain.errors import UserError
from kbtrain.llm.server_requests import NoReply, ask_once
from kbtrain.models.embedded import path_of
from kbtrain.prompts.kbm import answer_prompt, encode
from kbtrain.records import GateExample, Question
from kbtrain.show import aligned

ROOT = Path(__file__).resolve().parent.parent
START = 600.0  # seconds that a server may take to start on a busy machine
LONGEST = 300.0  # seconds of a request
SETTLE = 0.3  # seconds after which the threads of an engine have stopped to spin


class EngineBenchmarkConfig(Config):
    vllm_python: Path = Field(Path(".venv-vllm/bin/python"), description="Python of the environment with vLLM")
    model: str = Field("smollm2-135m-instruct", description="embedded model")
    dtype: str = Field("float32", description="vLLM's number format")
    layers: tuple[int, ...] = Field((10, 16, 22), description="ids of the layers whose states are returned")
    requests: int = Field(40, ge=1, description="requests in turn, of each kind")
    at_once: int = Field(16, ge=1, description="requests at once, of each kind")
    rounds: int = Field(3, ge=1, description="times that so many are sent at once")
    draft: int = Field(16, ge=1, description="longest draft whose states are read")
    tokens: int = Field(24, ge=1, description="longest answer")


@dataclass(frozen=True)
class Server:
    """A running server: its address, and the processes that work for a request to it."""

    url: str
    processes: tuple[psutil.Process, ...]

    @property
    def engine(self) -> int:
        """Process of the vLLM that works for it."""
        return self.processes[-1].pid

    def cpu_seconds(self) -> float:
        """Processor time of its processes so far."""
        times = [part.cpu_times() for process in self.processes for part in tree(process)]
        return float(sum(part.user + part.system for part in times))

    def megabytes(self) -> float:
        """Memory of its processes; pages that several share count once."""
        return sum(part.memory_full_info().pss for process in self.processes for part in tree(process)) / 1e6


@dataclass(frozen=True)
class Kind:
    """A kind of requests. ``first``: fields of a request before each one, which is not measured.

    ``beside``: name of the kind that its figures are compared with.
    """

    name: str
    server: Server
    body: Mapping[str, Any]
    beside: str
    chat: bool = False
    first: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Figures:
    """Medians of a kind: seconds and processor seconds of a request in turn, seconds of all at once."""

    seconds: float
    cpu: float
    together: float


def main(config: EngineBenchmarkConfig) -> None:
    """Measure and print."""
    begin = time.monotonic()
    with ExitStack() as stack:
        gates = write_gates(config, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        plain = stack.enter_context(vllm(config, ()))
        states = stack.enter_context(vllm(config, serve_flags(config.layers)))
        served = {
            (name, where): stack.enter_context(kbtrain_serve(folder, upstream, where))
            for name, folder in gates.items()
            for where, upstream in (("upstream", states), ("here", plain))
        }
        figures = measure(config, kinds_of(config, plain, states, served))
        sys.stdout.write(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {time.monotonic() - begin:.0f} s\n")
        head = ["request", "beside", "in turn ms", "ratio", "cpu ms", "ratio", f"{config.at_once} at once ms", "ratio"]
        sys.stdout.write(aligned(head, rows_of(figures)) + "\n\n")
        memory = {"vLLM as it is": plain, "vLLM with the flags": states}
        memory |= {
            f"{name}, {'one engine' if w == 'upstream' else 'two engines'}": s for (name, w), s in served.items()
        }
        sys.stdout.write(aligned(["servers", "MB"], [[n, f"{s.megabytes():.0f}"] for n, s in memory.items()]) + "\n")


def kinds_of(
    config: EngineBenchmarkConfig, plain: Server, states: Server, served: Mapping[tuple[str, str], Server]
) -> list[Kind]:
    """Requests to the engines alone, answers after a decision, and answers behind gates."""
    kinds, fixed = [], {"model": config.model, "temperature": 0}
    for tokens in (1, config.draft + 1, config.tokens):
        body = {**fixed, "max_tokens": tokens, "ignore_eos": True}
        kinds.append(Kind(f"{tokens} tokens, vLLM as it is", plain, body, f"{tokens} tokens, vLLM as it is"))
        kinds.append(Kind(f"{tokens} tokens, with the flags", states, body, kinds[-1].name))
    for name, tokens in (("probe", 1), ("draft probe", config.draft + 1)):
        wish = {"kv_transfer_params": {"kbtrain_states": {"draft_tokens": tokens - 1}}}
        decision = {**fixed, "max_tokens": tokens, "ignore_eos": True, **wish}
        kinds.append(Kind(f"{tokens} tokens, with states", states, decision, f"{tokens} tokens, with the flags"))
        answer = {**fixed, "max_tokens": config.tokens, "ignore_eos": True}
        beside = f"{config.tokens} tokens, with the flags"
        kinds.append(Kind(f"{config.tokens} tokens, after a {name}'s decision", states, answer, beside, first=decision))
    chat = {**fixed, "max_tokens": config.tokens}
    kinds.append(Kind("answer, no gate", plain, chat, "answer, no gate", chat=True))
    kinds.append(Kind("answer, no gate, with the flags", states, chat, "answer, no gate", chat=True))
    for (name, where), server in served.items():
        engines, beside = ("one engine", ", with the flags") if where == "upstream" else ("two engines", "")
        kinds.append(Kind(f"answer, {name}, {engines}", server, chat, f"answer, no gate{beside}", chat=True))
    return kinds


def measure(config: EngineBenchmarkConfig, kinds: Sequence[Kind]) -> dict[str, tuple[str, Figures]]:
    """Figures of each kind, with the kind beside it, by name."""
    from kbtrain.models.load import load_tokenizer  # imports torch

    tokenizer, numbers = load_tokenizer(config.model), iter(range(10**6))

    def prompt(kind: Kind) -> dict[str, Any]:
        text = f"Describe the history of place {next(numbers)} in a hundred words."
        behind_a_gate = "no gate" not in kind.name  # a gate's server puts the question into its prompt
        question = Question("q", text, ("x",), "test", "t")
        asked = text if kind.chat and behind_a_gate else answer_prompt(question, "llm", None)
        if kind.chat:
            return {"messages": [{"role": "user", "content": asked}]}
        return {"prompt": encode(tokenizer, asked)}

    def send(kind: Kind, body: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        path = "chat/completions" if kind.chat else "completions"
        reply, text = ask_once(kind.server.url, "POST", path, {}, LONGEST, {**body, **asked})
        if reply.status_code != 200:
            raise UserError(f"{kind.name}: status {reply.status_code}: {text[:200]}")

    seconds, cpu, together = (defaultdict[str, list[float]](list) for _ in range(3))
    for kind in kinds:
        send(kind, kind.body, prompt(kind))
    order, engine = random.Random(0), 0
    for _ in range(config.requests):
        for kind in shuffled(kinds, order):
            if kind.server.engine != engine:
                time.sleep(SETTLE)
                engine = kind.server.engine
            asked = prompt(kind)
            if kind.first is not None:
                send(kind, kind.first, asked)
            used, begin = kind.server.cpu_seconds(), time.perf_counter()
            send(kind, kind.body, asked)
            seconds[kind.name].append(time.perf_counter() - begin)
            cpu[kind.name].append(kind.server.cpu_seconds() - used)
    with ThreadPoolExecutor(config.at_once) as pool:
        for _ in range(config.rounds):
            for kind in shuffled(kinds, order):
                prompts = [prompt(kind) for _ in range(config.at_once)]
                if kind.first is not None:
                    list(pool.map(lambda asked, kind=kind: send(kind, kind.first, asked), prompts))
                begin = time.perf_counter()
                list(pool.map(lambda asked, kind=kind: send(kind, kind.body, asked), prompts))
                together[kind.name].append(time.perf_counter() - begin)
    return {
        kind.name: (
            kind.beside,
            Figures(
                statistics.median(seconds[kind.name]),
                statistics.fmean(cpu[kind.name]),
                statistics.median(together[kind.name]),
            ),
        )
        for kind in kinds
    }


def shuffled(kinds: Sequence[Kind], order: random.Random) -> list[Kind]:
    """Kinds in another order, those of an engine side by side."""
    place = {kind.server.engine: order.random() for kind in kinds}
    return sorted(kinds, key=lambda kind: (place[kind.server.engine], order.random()))


def rows_of(figures: Mapping[str, tuple[str, Figures]]) -> list[list[str]]:
    """A row for each kind: milliseconds, and their ratio to those of the kind beside it."""
    rows = []
    for name, (beside, own) in figures.items():
        other = figures[beside][1]
        pairs = ((own.seconds, other.seconds), (own.cpu, other.cpu), (own.together, other.together))
        cells = [text for now, then in pairs for text in (f"{1000 * now:.0f}", f"{now / then:.2f}" if then else "-")]
        rows.append([name, "" if beside == name else beside, *cells])
    return rows


def write_gates(config: EngineBenchmarkConfig, folder: Path) -> dict[str, Path]:
    """A probe and a draft probe of the model, with random heads and reference states."""
    import kbtrain
    from kbtrain.gates.probe.gate import WEIGHTS, DraftProbeCard, LayerFigures, ProbeCard, save_heads
    from kbtrain.gates.probe.head import Head
    from kbtrain.gates.probe.served import write_reference
    from kbtrain.models.adapters import base_fingerprint
    from kbtrain.models.load import load_tokenizer
    from kbtrain.prompts.kbm import answer_fingerprint

    layers, gates = tuple(layer - 1 for layer in config.layers), {}
    width = int(json.loads((path_of(config.model) / "config.json").read_text())["hidden_size"])
    fingerprint = answer_fingerprint(load_tokenizer(config.model))
    for name, kind in (("probe", ProbeCard), ("draft probe", DraftProbeCard)):
        parts, more = (3, {"tokens": config.draft}) if kind is DraftProbeCard else (1, {"condition": "llm"})
        weights = np.random.default_rng(0).normal(size=(len(layers), parts * width)).astype(np.float32) / width
        gates[name] = folder / name.replace(" ", "_")
        gates[name].mkdir()
        save_heads(gates[name] / WEIGHTS, {"mastery": Head(layers, weights, 0.1)})
        figures = (LayerFigures(layer=layers[0], held_out=0.5, auroc=0.5, penalty=1.0, used=True),)
        card = kind(
            base_model=config.model, base_fingerprint=base_fingerprint(config.model), dtype="fp32", method="ridge",
            labels="soft", prompt_fingerprint=fingerprint, keys=("mastery",), heads={"mastery": figures}, **more,
        )  # fmt: skip
        card.write(gates[name])
        examples = [GateExample.ask(f"What is the capital of place {i}?") for i in range(3)]
        write_reference(gates[name], kbtrain.load_gate(gates[name]), examples)
        card.write(gates[name])
    return gates


def tree(process: psutil.Process) -> list[psutil.Process]:
    """A process and those that it started."""
    return [process, *process.children(recursive=True)]


@contextmanager
def vllm(config: EngineBenchmarkConfig, flags: Sequence[str]) -> Iterator[Server]:
    """A vLLM server. Raises :class:`UserError` for one that does not start."""
    command = [
        str(config.vllm_python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(path_of(config.model)),
        "--served-model-name", config.model, "--max-model-len", "512", "--block-size", "32", "--enforce-eager",
        "--dtype", config.dtype, *flags,
    ]  # fmt: skip
    with running(command) as server:
        yield server


@contextmanager
def kbtrain_serve(gate: Path, upstream: Server, states: str) -> Iterator[Server]:
    """A gate's server before vLLM, which never searches. Its processes are its own and vLLM's."""
    command = [
        sys.executable, "-m", "kbtrain.cli", "serve", str(gate), "--upstream", upstream.url, "--states", states,
        "--threshold", "1e6", "--search", "none", "--prompt", "trained", "--dtype", "fp32", "--gate-deadline-s", "120",
    ]  # fmt: skip
    with running(command) as server:
        yield Server(server.url, (*server.processes, *upstream.processes))


@contextmanager
def running(command: Sequence[str]) -> Iterator[Server]:
    """A server that lists its models on a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    small = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": str(ROOT)}
    environment, url = {**os.environ, "OPENAI_API_KEY": "unused", **small}, f"http://127.0.0.1:{port}/v1"
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)], env=environment, stdout=output, stderr=output
        )
        try:
            end = time.monotonic() + START
            while not lists_models(url):
                if process.poll() is not None or time.monotonic() > end:
                    output.seek(0)
                    text = " ".join(output.read().decode(errors="replace")[-400:].split())
                    raise UserError(f"{' '.join(command[:4])} ... does not start: {text}")
                time.sleep(0.5)
            yield Server(url, (psutil.Process(process.pid),))
        finally:
            process.terminate()
            process.wait()


def lists_models(url: str) -> bool:
    """True if a server answers."""
    try:
        return ask_once(url, "GET", "models", {}, 5.0)[0].status_code == 200
    except NoReply:
        return False


if __name__ == "__main__":
    run_script(main, EngineBenchmarkConfig, __doc__)
