"""A local server with /v1/embeddings whose vectors count a text's words; it fails where it is told to."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from support.http_server import Asked, LocalServer

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
        super().__init__()
        self.asked: list[list[str]] = []
        self.keys: list[str | None] = []
        self.fail: list[int] = []
        self.fail_after: int | None = None
        self.most = 10_000  # texts in one request
        self.paths: list[str] = []
        self.spoil: Any = lambda reply: reply

    def reply(self, asked: Asked) -> tuple[int, Any]:
        texts = asked.body["input"]
        self.asked.append(texts)
        self.keys.append(asked.headers.get("authorization") or asked.headers.get("api-key"))
        self.paths.append(asked.path)
        if (n := len(texts)) > self.most:  # the words of text-embeddings-inference
            text = f"batch size {n} > maximum allowed batch size {self.most}"
            return 422, {"error": text, "error_type": "Validation"}
        status = self.fail.pop(0) if self.fail else 200
        if self.fail_after is not None and len(self.asked) > self.fail_after:
            status = 400
        if status != 200:
            return status, {"error": {"message": "not now"}}
        rows = [{"object": "embedding", "index": i, "embedding": vector(text)} for i, text in enumerate(texts)]
        return status, self.spoil({"object": "list", "data": rows[::-1], "model": asked.body["model"]})
