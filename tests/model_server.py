"""A local HTTP server in OpenAI's protocol whose replies follow a script: failures first, then answers."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable
from typing import Any

from support.http_server import Asked, LocalServer


class ModelServer(LocalServer):
    """``failures`` are used up one a request, in their order ("": none); an answer depends on its seed alone."""

    path = "/v1"

    def __init__(
        self,
        failures: tuple[str, ...] = (),
        most: int = 1000,
        logprobs: bool = True,
        missing: tuple[str, ...] = (),
        unknown: tuple[str, ...] = (),
        models: tuple[str, ...] = ("tiny",),
        usage: bool = True,
        say: Callable[[dict[str, Any], int], str] | None = None,
    ) -> None:
        super().__init__()
        self.missing = missing  # paths that are not there
        self.unknown = unknown  # fields that are refused
        self.models = models
        self.usage = usage
        self.say = say  # text of an answer, from the request and the answer's place in it
        self.failures = list(failures)
        self.most = most  # choices in one reply: a server that knows no n gives 1
        self.logprobs = logprobs
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.under_way = self.busiest = 0
        self.delay = 0.0

    def reply(self, asked: Asked) -> tuple[Any, ...] | None:
        if asked.method == "GET":
            return 200, {"data": [{"id": name, "owned_by": "vllm"} for name in self.models]}
        body, key = asked.body, asked.headers.get("authorization")
        with self.guard:
            self.requests.append({"path": asked.path, "key": key, **body})
            self.times.append(time.monotonic())
            failure = self.failures.pop(0) if self.failures else None
            self.under_way += 1
            self.busiest = max(self.busiest, self.under_way)
        time.sleep(2.0 if failure == "too_late" else self.delay)
        with self.guard:
            self.under_way -= 1
        if asked.path.removeprefix("/v1/") in self.missing:
            return 404, {"error": {"message": "no such path"}}
        if refused := [name for name in self.unknown if name in body]:
            return 400, {"error": {"message": f"unknown field {refused[0]}"}}
        if failure:
            return {**failures(), **echoes(str(key))}[failure]
        made = completion(body, self.most, self.logprobs, "chat" in asked.path, self.say)
        return 200, made if self.usage else {**made, "usage": None}


def failures() -> dict[str, tuple[Any, ...] | None]:
    """Replies by their names; None: the connection ends without one."""
    soon = email.utils.formatdate(time.time() + 1.5, usegmt=True)
    slow = {"error": {"message": "slow down"}}
    return {
        "busy": (429, slow),
        "busy_seconds": (429, slow, {"Retry-After": "0.4"}),
        "busy_date": (503, {"error": "loading"}, {"Retry-After": soon}),
        "broken": (500, {"error": {"message": "internal"}}),
        "gateway": (502, "<html>\n<h1>502 Bad Gateway</h1>\n</html>"),
        "hang_up": None,
        "cut_off": (200, '{"choices": [{"text": "half a', {"content-length": "42"}, True),
        "too_late": None,
        "no_json": (200, "OK"),
        "no_choices": (200, {"error": {"message": "out of luck"}}),
        "empty_choices": (200, {"choices": []}),
        "refused": (400, {"error": {"message": "prompt is too\nlong"}}),
        "no_key": (401, {"error": {"message": "no key"}}),
        "no_model": (404, {"message": "model not found"}),
    }


def echoes(key: str) -> dict[str, tuple[Any, ...]]:
    """Replies by their names that repeat the caller's key."""
    text = {"text": f"echo {key}", "index": 0, "finish_reason": "stop", "logprobs": {"token_logprobs": [-1.0]}}
    return {
        "echo_error": (400, {"error": {"message": f"not allowed: {key}"}}),
        "echo_busy": (429, {"error": {"message": f"slow down, {key}"}}, {"Retry-After": "0"}),
        "echo_text": (200, {"choices": [text], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}),
    }


def completion(
    body: dict[str, Any], most: int, logprobs: bool, chat: bool, say: Callable[[dict[str, Any], int], str] | None
) -> dict[str, Any]:
    choices = [choice(body, i, logprobs, chat, say) for i in range(min(body.get("n", 1), most))]
    tokens = sum(c["_tokens"] for c in choices)
    return {"choices": choices, "usage": {"prompt_tokens": 17, "completion_tokens": tokens}}


def choice(
    body: dict[str, Any], i: int, logprobs: bool, chat: bool, say: Callable[[dict[str, Any], int], str] | None
) -> dict[str, Any]:
    text = "greedy" if body.get("temperature") == 0 else f"answer {body.get('seed', 0) + i}"
    text = text if say is None else say(body, i)
    tokens = len(text.split()) + 1
    values = [-0.25] * tokens
    made: dict[str, Any] = {"index": i, "finish_reason": "stop", "stop_reason": None, "_tokens": tokens}
    if chat:
        made |= {"message": {"content": text}, "logprobs": {"content": [{"logprob": v} for v in values]}}
    else:
        made |= {"text": text, "logprobs": {"token_logprobs": values}}
    if not logprobs:
        made["logprobs"] = None
    return made
