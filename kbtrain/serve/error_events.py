"""Errors inside an answer of status 200: an event of a stream, or the whole body."""

from __future__ import annotations

import json
from typing import Any

from kbtrain.serve.cors import Header

LONGEST = 65_536  # bytes of a line, or of a body, that are kept to look for an error


class ErrorEvents:
    """Watches the pieces of an answer as they pass; :attr:`found` is True behind an error.

    ``streamed``: server-sent events, else one JSON body. Compressed answers and other types pass unwatched.
    """

    def __init__(self, headers: list[Header]) -> None:
        kinds = {name: value.lower() for name, value in headers}
        kind = kinds.get(b"content-type", b"")
        self.streamed = kind.startswith(b"text/event-stream")
        self._watching = kinds.get(b"content-encoding", b"identity") == b"identity"
        self._watching &= self.streamed or kind.startswith(b"application/json")
        self._kept = b""
        self.found = False

    def feed(self, piece: bytes) -> None:
        """Look at a piece, wherever it is cut."""
        if not self._watching or self.found:
            return
        if not self.streamed:
            self._kept += piece
            self._watching = len(self._kept) <= LONGEST
            return
        whole, end, rest = piece.rpartition(b"\n")
        if not end:
            self._kept = (self._kept + piece)[:LONGEST]
            return
        lines, self._kept = self._kept + whole, rest[:LONGEST]
        if b"error" in lines or b"response.failed" in lines:
            self.found = any(map(_is_error_line, lines.splitlines()))

    def end(self) -> None:
        """Look at what stands behind the last line end."""
        if self._watching and not self.found and b"error" in self._kept:
            self.found = _is_error_line(self._kept) if self.streamed else _is_error(self._kept)
        self._kept = b""


def _is_error_line(line: bytes) -> bool:
    field, _, value = line.partition(b":")
    if field == b"event":
        return value.strip() in (b"error", b"response.failed")  # the second one: OpenAI's Responses
    return field == b"data" and b"error" in value and _is_error(value)


def _is_error(data: bytes) -> bool:
    """True for a JSON object with an error in it, or of the type "error"."""
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and (bool(value.get("error")) or value.get("type") == "error")
