"""A local HTTP server in OpenAI's protocol whose replies follow a script: failures first, then answers."""

from __future__ import annotations

import email.utils
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.http_server import LocalServer


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
        super().__init__(Handler)
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
        self.guard = threading.Lock()
        self.delay = 0.0

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that has gone away is part of the script


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ModelServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.reply(200, {"data": [{"id": name, "owned_by": "vllm"} for name in self.server.models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server = self.server
        with server.guard:
            server.requests.append({"path": self.path, "key": self.headers.get("authorization"), **body})
            server.times.append(time.monotonic())
            failure = server.failures.pop(0) if server.failures else None
            server.under_way += 1
            server.busiest = max(server.busiest, server.under_way)
        time.sleep(server.delay)
        with server.guard:
            server.under_way -= 1
        refused = [name for name in server.unknown if name in body]
        if self.path.removeprefix("/v1/") in server.missing:
            self.reply(404, {"error": {"message": "no such path"}})
        elif refused:
            self.reply(400, {"error": {"message": f"unknown field {refused[0]}"}})
        elif not failure:
            made = completion(body, server.most, server.logprobs, "chat" in self.path, server.say)
            self.reply(200, made if server.usage else {**made, "usage": None})
        else:
            getattr(self, "fail_" + failure)()

    def reply(self, status: int, content: Any, headers: dict[str, str] | None = None, cut: int = 0) -> None:
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[: len(data) - cut])

    def fail_busy(self) -> None:
        self.reply(429, {"error": {"message": "slow down"}})

    def fail_busy_seconds(self) -> None:
        self.reply(429, {"error": {"message": "slow down"}}, {"Retry-After": "0.4"})

    def fail_busy_date(self) -> None:
        soon = email.utils.formatdate(time.time() + 1.5, usegmt=True)
        self.reply(503, {"error": "loading"}, {"Retry-After": soon})

    def fail_broken(self) -> None:
        self.reply(500, {"error": {"message": "internal"}})

    def fail_gateway(self) -> None:
        self.reply(502, "<html>\n<h1>502 Bad Gateway</h1>\n</html>")

    def fail_hang_up(self) -> None:
        self.close_connection = True

    def fail_cut_off(self) -> None:
        self.reply(200, {"choices": [{"text": "half an ans"}]}, cut=9)
        self.close_connection = True

    def fail_too_late(self) -> None:
        time.sleep(2.0)
        self.close_connection = True

    def fail_no_json(self) -> None:
        self.reply(200, "OK")

    def fail_no_choices(self) -> None:
        self.reply(200, {"error": {"message": "out of luck"}})

    def fail_empty_choices(self) -> None:
        self.reply(200, {"choices": []})

    def fail_echo_error(self) -> None:
        self.reply(400, {"error": {"message": f"not allowed: {self.headers['authorization']}"}})

    def fail_echo_busy(self) -> None:
        self.reply(429, {"error": {"message": f"slow down, {self.headers['authorization']}"}}, {"Retry-After": "0"})

    def fail_echo_text(self) -> None:
        text = {"text": f"echo {self.headers['authorization']}", "index": 0, "finish_reason": "stop"}
        choice = {**text, "logprobs": {"token_logprobs": [-1.0]}}
        self.reply(200, {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})

    def fail_refused(self) -> None:
        self.reply(400, {"error": {"message": "prompt is too\nlong"}})

    def fail_no_key(self) -> None:
        self.reply(401, {"error": {"message": "no key"}})

    def fail_no_model(self) -> None:
        self.reply(404, {"message": "model not found"})


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
