"""kbtrain serve under load, beside LiteLLM's proxy and RouteLLM's server: the same stub upstream, one run.

Rows: the stub alone, the proxy without its gate, with it, and the peers whose Python is given. For each, at a rate, the
time to the first byte and what the server adds to it: each request is sent twice, through the server and, half an
interval later, straight to the stub, by the same client; added is the difference within such a pair, for the first
byte and for the whole answer. Beside it the server's processor time a request; then requests a second with many
clients at once, errors, answers that hold another request's words, and memory. Then the gate alone: questions a
second, in batches and one by one. With --requests the memory after each tenth of so many requests.

Examples:
  python benchmarks/serving.py                              all but the peers, about four minutes
  python benchmarks/serving.py --tokens 1 --requests 100000
  python benchmarks/serving.py --clients 200 --seconds 5 --hold 180
  python benchmarks/serving.py --litellm-python peers/bin/python --routellm-python peers/bin/python
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.show import aligned

sys.path.insert(0, str(Path(__file__).parent))
from peers.http_load import Clients, Load, added, at_once, at_rate, in_all, in_turn

ROOT = Path(__file__).resolve().parent.parent
PEERS = Path(__file__).parent / "peers"
LITELLM = """
model_list:
  - model_name: stub
    litellm_params: {{model: openai/stub, api_base: "http://127.0.0.1:{port}/v1", api_key: unused}}
"""
LITELLM_ENVIRONMENT = {  # its proxy starts without its own key, and asks no network for prices
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "true",
}
ROUTELLM = "--routers random --strong-model openai/stub --weak-model openai/stub --api-key unused"


class ServingBenchmarkConfig(Config):
    gate: Path | None = Field(None, description="a gate's folder; null: a probe on all-minilm-l6-v2, made for it")
    rate: float = Field(50, gt=0, description="requests a second where latency is measured")
    clients: int = Field(200, ge=1, description="clients at once where throughput is measured")
    seconds: float = Field(20, gt=0, description="length of each measurement")
    hold: float | None = Field(None, gt=0, description="seconds that all clients ask a server at once; null: seconds")
    tokens: int = Field(50, ge=1, description="tokens of an answer")
    pause: float = Field(0.0, ge=0, description="seconds between the stub's tokens")
    requests: int = Field(0, ge=0, description="requests over which the server's memory is watched; 0: none")
    litellm_python: Path | None = Field(None, description="Python with litellm[proxy]")
    routellm_python: Path | None = Field(None, description="Python with routellm[serve]")


QUESTIONS = [f"What is the capital of place number {i}?" for i in range(500)]


def main(config: ServingBenchmarkConfig) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        gate = config.gate or probe(Path(folder) / "probe")
        stub = free_port()
        rows = []
        with running([sys.executable, str(PEERS / "serving_stub.py"), stub, config.tokens, config.pause], stub):
            rows.append(row("stub alone", *measured(config, stub, stub, {}, "stub")))
            with kbtrain(gate, stub) as (port, process):
                never = {"x-kbtrain-retrieve": "never"}
                rows.append(row("kbtrain, gate off", *measured(config, stub, port, never, "stub", process)))
                rows.append(row("kbtrain, gate on", *measured(config, stub, port, {}, "stub", process)))
                steady = watched(config, port, process)
            for name, peer in peers(config, Path(folder), stub):
                key = {"authorization": "Bearer sk-1234"}
                try:
                    with peer as (port, process, model):
                        rows.append(row(name, *measured(config, stub, port, key, model, process)))
                except UserError as error:
                    sys.stderr.write(f"{name}: skipped ({error})\n")
        print(f"{config.tokens} tokens an answer; {config.rate:g} requests a second, then {config.clients} clients")
        head = [
            "",
            "first byte p50 ms",
            "p99 ms",
            "added p50",
            "added p99",
            "whole added p50",
            "CPU ms",
            "requests/s",
            "errors",
            "mixed",
            "MB",
        ]
        print(aligned(head, rows))
        print(batching(config, gate))
        if steady:
            print(f"MB after each tenth of {config.requests:,} requests: {steady}")


def probe(folder: Path) -> Path:
    """A probe on the embedded encoder, for questions of the atlas; its labels are made up, its cost is any probe's."""
    from kbtrain.gate.card import ClassifierCard, Threshold
    from kbtrain.gates.encoder.probe import EncoderProbe, ProbeInput
    from kbtrain.models.adapters import open_body
    from kbtrain.records import GateExample

    model, tokenizer = open_body("all-minilm-l6-v2", "fp32", "cpu")
    examples = [GateExample.ask(question) for question in QUESTIONS[:100]]
    reader = ProbeInput(tokenizer, 64)
    made = EncoderProbe.fit(model, reader, examples, [float(i % 2) for i in range(len(examples))])
    made.save_beside(folder)
    chosen = Threshold(threshold=0.5, rule="given", dev_file_sha256="", n_dev=0)
    ClassifierCard(
        kind="encoder_probe", base_model="all-minilm-l6-v2", reads=reader.settings, labels="hard", seed=0,
        thresholds={"encoder_probe": chosen},
    ).write(folder)  # fmt: skip
    return folder


def measured(
    config: ServingBenchmarkConfig, stub: int, port: int, headers: dict[str, str], model: str,
    process: psutil.Process | None = None,
) -> tuple[Load, Load, Load, float, float]:  # fmt: skip
    """Straight to the stub and through the server in pairs; then with all clients at once; the server's processor time
    for a request at that rate, in ms; its memory afterwards, in MB."""
    path = "/v1/chat/completions"
    asyncio.run(at_rate(Clients(port, path, headers, model), QUESTIONS, config.rate, min(2, config.seconds)))  # warm
    before = processor(process)
    both = [Clients(port, path, headers, model), Clients(stub, path, {}, "stub")]
    even, straight = asyncio.run(in_turn(both, QUESTIONS, config.rate, config.seconds))
    spent = 1000 * (processor(process) - before) / max(1, len(even.whole))
    length = config.hold if config.hold and process else config.seconds  # the stub alone is not what is tried
    full = asyncio.run(at_once(Clients(port, path, headers, model), QUESTIONS, config.clients, length))
    return straight, even, full, spent, memory(process)


def watched(config: ServingBenchmarkConfig, port: int, process: psutil.Process) -> str:
    """The server's memory after each tenth of the requests, in MB, and the errors; nothing for no requests."""
    found, errors = [], 0
    for _ in range(10 if config.requests else 0):
        clients = Clients(port, "/v1/chat/completions", {}, "stub")
        load = asyncio.run(in_all(clients, QUESTIONS, 16, config.requests // 10))
        errors += load.errors + load.mixed
        found.append(f"{memory(process):.0f}")
    return f"{' '.join(found)}; {errors} errors" if found else ""


def row(name: str, straight: Load, even: Load, full: Load, spent: float, megabytes: float) -> list[str]:
    """One line of the table."""
    times = [even.quantile(0.5), even.quantile(0.99)]
    times += [added(even.first, straight.first, share) for share in (0.5, 0.99)]
    times += [added(even.whole, straight.whole, 0.5), spent]
    rate, failures = len(full.whole) / full.seconds, [str(even.errors + full.errors), str(even.mixed + full.mixed)]
    return [name, *(f"{one:.2f}" for one in times), f"{rate:.0f}", *failures, f"{megabytes:.0f}"]


def batching(config: ServingBenchmarkConfig, gate: Path) -> str:
    """Questions a second of the gate alone: 32 clients at once in batches, and one after the other."""
    rates = []
    for n, batch in ((32, 32), (32, 1)):
        with kbtrain(gate, None, f"--batch={batch}") as (port, _):
            clients = Clients(port, "/v1/gate", {}, "", stream=False)
            asyncio.run(at_once(clients, QUESTIONS, n, min(2, config.seconds)))  # warm
            load = asyncio.run(at_once(clients, QUESTIONS, n, config.seconds))
            rates.append(len(load.whole) / load.seconds)
    return f"gate alone, 32 clients: {rates[0]:.0f} questions/s in batches of 32, {rates[1]:.0f} one at a time"


@contextmanager
def kbtrain(gate: Path, stub: int | None, *more: str) -> Iterator[tuple[int, psutil.Process]]:
    """The server; without ``stub`` the gate alone."""
    port = free_port()
    upstream = [] if stub is None else [f"--upstream=http://127.0.0.1:{stub}/v1"]
    command = [sys.executable, "-m", "kbtrain.cli", "serve", str(gate), f"--port={port}", "--search=none", *upstream]
    with running([*command, *more], port) as process:
        yield port, process


def peers(config: ServingBenchmarkConfig, folder: Path, stub: int) -> Iterator[tuple[str, Any]]:
    """Name and context of each peer whose Python is given; a context gives port, process and model."""
    if config.litellm_python:
        (folder / "litellm.yaml").write_text(LITELLM.format(port=stub))
        port = free_port()
        command = [config.litellm_python.parent / "litellm", "--config", folder / "litellm.yaml", "--port", port]
        yield "litellm proxy", peer([*command, "--host", "127.0.0.1"], port, "stub")
    if config.routellm_python:
        port = free_port()
        address = ["--base-url", f"http://127.0.0.1:{stub}/v1", "--port", port]
        command = [config.routellm_python, "-m", "routellm.openai_server", *ROUTELLM.split(), *address]
        yield "routellm server", peer(command, port, "router-random-0.5")


@contextmanager
def peer(command: list[object], port: int, model: str) -> Iterator[tuple[int, psutil.Process, str]]:
    """A peer's server while it runs."""
    with running(command, port) as process:
        yield port, process, model


@contextmanager
def running(command: list[object], port: int) -> Iterator[psutil.Process]:
    """A process that listens on a port; ended on the way out."""
    with tempfile.TemporaryFile() as said:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": "unused", **LITELLM_ENVIRONMENT}
        process = subprocess.Popen([str(part) for part in command], stdout=said, stderr=said, env=environment)
        try:
            until = time.monotonic() + 120
            while not listening(port):
                if process.poll() is not None or time.monotonic() > until:
                    said.seek(0)
                    end = said.read().decode(errors="replace")[-300:]
                    raise UserError(f"{command[0]} ... does not answer on port {port}: {end}")
                time.sleep(0.1)
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait()


def listening(port: int) -> bool:
    """True once something answers HTTP on the port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def memory(process: psutil.Process | None) -> float:
    """Resident memory of a process and its children, in MB; nan without one."""
    if process is None:
        return float("nan")
    return sum(one.memory_info().rss for one in [process, *process.children(recursive=True)]) / 1e6


def processor(process: psutil.Process | None) -> float:
    """Processor seconds of a process and its children so far; nan without one."""
    if process is None:
        return float("nan")
    return sum(sum(one.cpu_times()[:2]) for one in [process, *process.children(recursive=True)])


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    run_script(main, ServingBenchmarkConfig, __doc__)
