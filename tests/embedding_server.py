"""A local server with /v1/embeddings whose vectors count a text's words; it fails where it is told to."""

from __future__ import annotations

import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.http_server import LocalServer

DIMENSIONS = 256


def vector(text: str) -> list[float]:
    """Counts of words, each at the place its hash says: texts that share words are near each other."""
    found = [0.0] * DIMENSIONS
    for word in re.findall(r"\w+", text.lower()):
        found[hashlib.sha256(word.encode()).digest()[0]] += 1.0
    return found


class EmbeddingServer(LocalServer):
    """``asked``: the texts of each request; ``spoil`` makes another reply of a right one; ``fail``: statuses first;
    ``fail_after`` requests everything is refused."""

    path = "/v1"

    def __init__(self) -> None:
        super().__init__(Handler)
        self.asked: list[list[str]] = []
        self.keys: list[str | None] = []
        self.fail: list[int] = []
        self.fail_after: int | None = None
        self.most = 10_000  # texts in one request
        self.paths: list[str] = []
        self.spoil: Any = lambda reply: reply


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: EmbeddingServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server = self.server
        server.asked.append(body["input"])
        server.keys.append(self.headers.get("authorization") or self.headers.get("api-key"))
        server.paths.append(self.path)
        status = server.fail.pop(0) if server.fail else 200
        if server.fail_after is not None and len(server.asked) > server.fail_after:
            status = 400
        rows = [{"object": "embedding", "index": i, "embedding": vector(t)} for i, t in enumerate(body["input"])]
        whole = server.spoil({"object": "list", "data": rows[::-1], "model": body["model"]})
        refusal: Any = {"error": {"message": "not now"}}
        if (n := len(body["input"])) > server.most:  # the words of text-embeddings-inference
            refusal = {
                "error": f"batch size {n} > maximum allowed batch size {server.most}",
                "error_type": "Validation",
            }
            status = 422
        data = json.dumps(whole if status == 200 else refusal).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...
