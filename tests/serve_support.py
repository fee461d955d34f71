"""A tiny gate's folder, the server in a thread of this process, and plain HTTP requests: shared by tests of serving."""

from __future__ import annotations

import asyncio
import functools
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from support.servers import wait_until
from tiny_turns import bert_folder, turn

NEEDS, KNOWN = "Tell me about the museum", "Book 3 tickets"


def probe_folder(folder: Path, threshold: float | None = 0.5, dev_scores: list[float] | None = None) -> Path:
    """An encoder probe on a tiny random BERT, fitted to ask for a search where a sight is asked about."""
    from kbtrain.gate.card import ClassifierCard, Threshold
    from kbtrain.gates.encoder.probe import HEAD, EncoderProbe, ProbeInput
    from kbtrain.models.adapters import open_body

    model, tokenizer = open_body(str(bert_folder(folder)), "fp32", "cpu")
    reader, turns = ProbeInput(tokenizer, 64), [turn(i) for i in range(480)]
    made = EncoderProbe.fit(model, reader, turns, [float(t.label) for t in turns], (0.25, 0.75))
    (folder / HEAD).write_text(made.head.model_dump_json())  # weights and tokenizer lie there
    evidence = {"dev_scores": dev_scores} if dev_scores else {}
    chosen = Threshold(threshold=threshold or 0.0, rule="given", dev_file_sha256="", n_dev=0, evidence=evidence)
    ClassifierCard(
        kind="encoder_probe", base_model="tiny", reads=reader.settings, labels="hard", seed=0,
        thresholds={} if threshold is None else {"encoder_probe": chosen},
    ).write(folder)  # fmt: skip
    return folder


def chat(text: str, **more: Any) -> dict[str, Any]:
    """The body of a request with one question."""
    return {"model": "stub", "messages": [{"role": "user", "content": text}], **more}


def echo(query: str, k: int) -> list[str]:
    """A search that finds the query."""
    return [query] * k


class Reply(NamedTuple):
    """An answer: status, headers (names in lower case), body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"]["message"])


class Running:
    """A server that runs."""

    def __init__(self, service: Any, port: int) -> None:
        self.service = service
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> Reply:
        """Send one request; ``body`` as JSON unless it is bytes."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        return self.ask("POST", path, body, headers)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.ask("GET", path, None, headers)

    def metric(self, line: str) -> float:
        """Value of a metric by its name and labels as they are in ``/metrics``; 0 where it does not stand there."""
        for row in self.get("/metrics").body.decode().splitlines():
            if row.startswith(line + " "):
                return float(row.rpartition(" ")[2])
        return 0.0


@functools.cache
def opened(folder: str, dtype: str, device: str, files: tuple[bytes, ...]) -> Any:
    """An encoder and its tokenizer, opened once by a process while the folder's files stay as they are (35 ms)."""
    from kbtrain.models.adapters import open_body

    return open_body(folder, dtype, device)


@contextmanager
def serving(gate: Path, **settings: Any) -> Iterator[Running]:
    """The server with these settings, in a thread and on a free port."""
    from kbtrain.serve.app import Service
    from kbtrain.serve.config import ServeConfig
    from kbtrain.serve.server import http_server, listen

    config = ServeConfig(**{"gate": gate, "port": 0, "search": "none", **settings})
    files = tuple(path.read_bytes() for path in sorted(Path(gate).rglob("*")) if path.is_file())
    with mock.patch("kbtrain.gates.encoder.probe.open_body", lambda *given: opened(*given, files)):
        service = Service(config)
    listening = listen(config.host, 0)
    server = http_server(service)

    async def run() -> None:
        await server.serve(sockets=[listening])
        await service.close()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        until_started(server)
        yield Running(service, listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def until_started(server: Any) -> None:
    wait_until(lambda: server.started)
