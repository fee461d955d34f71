"""The error that a client gets: a status, and a body in the form of OpenAI's or Anthropic's errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
ANTHROPIC_TYPES = TYPES | {
    404: "not_found_error", 413: "request_too_large", 500: "api_error", 502: "api_error", 503: "overloaded_error",
    504: "timeout_error",
}  # fmt: skip


class Refused(Exception):
    """A request that gets no answer. ``code`` is for programs, ``message`` for people; neither repeats a body."""

    def __init__(
        self, status: int, code: str, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        self.fields: dict[str, Any] = {}  # beside the error

    def body(self, anthropic: bool = False) -> bytes:
        """The JSON body."""
        if anthropic:
            kind = ANTHROPIC_TYPES.get(self.status, "invalid_request_error")
            return json.dumps(
                {"type": "error", "error": {"type": kind, "message": str(self), "code": self.code}}
            ).encode()
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        error: dict[str, Any] = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error, **self.fields}).encode()


class Busy(Refused):
    """No room: the same request may be sent again after a second."""

    def __init__(self, what: str) -> None:
        super().__init__(503, "busy", f"{what}; try again", headers={"retry-after": "1"})
