"""Stand-ins for servers: one of OpenAI's protocol whose replies follow a script, those of twelve makers, embeddings.

The makers' bodies follow users' posts: OpenAI (gpt-5 and o-series), Azure OpenAI, Gemini's OpenAI endpoint, llama.cpp's
server, vLLM, Mistral, FastAPI servers on pydantic, Ollama, LM Studio, Together, OpenRouter, LiteLLM.
"""

from __future__ import annotations

import email.utils
import hashlib
import re
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
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
        forbids: Callable[[str], bool] = lambda prompt: False,
        owner: str = "vllm",
    ) -> None:
        super().__init__()
        self.forbids, self.owner = forbids, owner  # prompts that a firewall refuses by 403
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
            return 200, {"data": [{"id": name, "owned_by": self.owner} for name in self.models]}
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
        if self.forbids(str(body.get("messages") or body)):
            return 403, "<html>blocked</html>"
        if failure:
            return {**failures(), **echoes(str(key))}[failure]
        made = completion(body, self.most, self.logprobs, "chat" in asked.path, self.say)
        return 200, made if self.usage else {**made, "usage": None}


def failures() -> dict[str, tuple[Any, ...] | None]:
    """Replies by their names; None: the connection ends without one."""
    soon = email.utils.formatdate(time.time() + 1.5, usegmt=True)
    slow = {"error": {"message": "slow down"}}
    return {
        "busy": (429, slow), "busy_seconds": (429, slow, {"Retry-After": "0.4"}),
        "busy_date": (503, {"error": "loading"}, {"Retry-After": soon}),
        "broken": (500, {"error": {"message": "internal"}}),
        "gateway": (502, "<html>\n<h1>502 Bad Gateway</h1>\n</html>"), "hang_up": None,
        "cut_off": (200, '{"choices": [{"text": "half a', {"content-length": "42"}, True), "too_late": None,
        "no_json": (200, "OK"), "no_choices": (200, {"error": {"message": "out of luck"}}),
        "empty_choices": (200, {"choices": []}), "refused": (400, {"error": {"message": "prompt is too\nlong"}}),
        "no_key": (401, {"error": {"message": "no key"}}), "no_model": (404, {"message": "model not found"}),
    }  # fmt: skip


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
    prompt = body.get("prompt") or body.get("messages")
    is_ids = isinstance(prompt, list) and isinstance(prompt[0], int)
    n_prompt = len(prompt) if is_ids else max(17, len(str(prompt)) // 4 - 100)
    return {"choices": choices, "usage": {"prompt_tokens": n_prompt, "completion_tokens": tokens}}


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


Body = dict[str, Any]
Reply = tuple[int, Any]
TOKENS_A_WORD = 2  # of a prompt, as these servers count them


def openai_error(message: str, code: str | None, param: str | None = None, status: int = 400) -> Reply:
    return status, {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def azure_filter() -> Reply:
    harmless = {name: {"filtered": False, "severity": "safe"} for name in ("hate", "self_harm", "sexual")}
    inner = {"code": "ResponsibleAIPolicyViolation",
             "content_filter_result": {**harmless, "violence": {"filtered": True, "severity": "medium"}}}  # fmt: skip
    message = ("The response was filtered due to the prompt triggering Azure OpenAI's content management policy. "
               "Please modify your prompt and retry.")  # fmt: skip
    return 400, {"error": {"message": message, "type": None, "param": "prompt", "code": "content_filter", "status": 400,
                           "innererror": inner}}  # fmt: skip


def gemini_error(message: str) -> Reply:
    return 400, [{"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}]


def _gpt5(body: Body) -> Reply | None:
    if "max_tokens" in body:
        return openai_error("Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                            "'max_completion_tokens' instead.", "unsupported_parameter", "max_tokens")  # fmt: skip
    if body.get("temperature", 1) != 1:
        return openai_error("Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) "
                            "value is supported.", "unsupported_value", "temperature")  # fmt: skip
    for key in ("stop", "logprobs", "top_p", "top_logprobs"):
        if key in body:
            text = f"Unsupported parameter: '{key}' is not supported with this model."
            return openai_error(text, "unsupported_parameter", key)
    return None


def _o1_preview(body: Body) -> Reply | None:
    if "temperature" in body:
        return openai_error("Unsupported parameter: 'temperature' is not supported with this model.",
                            "unsupported_parameter", "temperature")  # fmt: skip
    return _gpt5(body)


def _llamacpp(body: Body) -> Reply | None:
    if not 1 <= (n := body.get("n", 1)) <= 4:
        text = f"Field 'n': Value must be between 1 <= value <= 4, but got {n}"
        return 400, {"error": {"code": 400, "message": text, "type": "invalid_request_error"}}
    return None


def _llamacpp_context(n_prompt: int, context: int) -> Reply:
    text = f"request ({n_prompt} tokens) exceeds the available context size ({context} tokens), try increasing it"
    return 400, {"error": {"code": 400, "message": text, "type": "exceed_context_size_error",
                           "n_prompt_tokens": n_prompt, "n_ctx": context}}  # fmt: skip


def _vllm_context(n_prompt: int, context: int) -> Reply:
    text = f"This model's maximum context length is {context} tokens. However, you requested {n_prompt + 8} tokens."
    return 400, {"object": "error", "message": text, "type": "BadRequestError", "param": None, "code": 400}


def _mistral(body: Body) -> Reply | None:
    known = {"model", "messages", "temperature", "top_p", "max_tokens", "stream", "stop", "random_seed", "n"}
    unknown = [key for key in body if key not in known]
    if not unknown:
        return None
    detail = [{"type": "extra_forbidden", "loc": ["body", unknown[0]], "msg": "Extra inputs are not permitted"}]
    return 422, {"object": "error", "message": {"detail": detail}, "type": "invalid_request_error", "param": None,
                 "code": None}  # fmt: skip


def _fastapi(body: Body) -> Reply | None:
    if "stop" not in body:
        return None
    return 422, {
        "detail": [{"type": "extra_forbidden", "loc": ["body", "stop"], "msg": "Extra inputs are not permitted"}]
    }


def _gemini(body: Body) -> Reply | None:
    for key in ("seed", "logprobs"):
        if key in body:
            return gemini_error(f'Invalid JSON payload received. Unknown name "{key}": Cannot find field.')
    if body.get("n", 1) > 1:
        return gemini_error("Multiple candidates is not enabled for this model")
    return None


def _lmstudio(body: Body) -> Reply | None:
    return (400, {"error": "'logprobs' is not supported"}) if "logprobs" in body else None


@dataclass(frozen=True)
class Maker:
    """One server: ``refuses`` a body, or None; ``models`` it lists (None: no such path); ``most`` answers a reply."""

    models: Any = field(default_factory=lambda: {"data": [{"id": "m", "owned_by": "x"}]})
    refuses: Callable[[Body], Reply | None] = lambda body: None
    most: int = 128
    logprobs: bool = True
    completions: bool = False
    path: str = "/v1"
    key_header: str | None = None
    query: dict[str, str] = field(default_factory=dict)
    context: int = 100_000
    too_long: Callable[[int, int], Reply] = _vllm_context
    bomb: Callable[[], Reply] = azure_filter
    usage_of_one: bool = False


def _named(*names: str, owner: str = "x", **more: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": owner, **more} for name in names]}


MAKERS: dict[str, Maker] = {
    "gpt-5": Maker(_named("m", owner="openai"), _gpt5),
    "o1-preview": Maker(_named("m", owner="openai"), _o1_preview),
    "azure": Maker(None, path="/openai/deployments/m", key_header="api-key", query={"api-version": "2024-10-21"}),
    "llama.cpp": Maker(
        _named("m", owner="llamacpp", meta={"n_ctx": 2048}), _llamacpp, completions=True, context=2048,
        too_long=_llamacpp_context, usage_of_one=True,
    ),
    "vllm": Maker(_named("m", owner="vllm", root="m", max_model_len=512), completions=True, context=512),
    "mistral": Maker(_named("m", owner="mistralai"), _mistral, logprobs=False),
    "fastapi": Maker(_named("m"), _fastapi),
    "gemini": Maker(_named("models/m", owner="google"), _gemini, logprobs=False),
    "ollama": Maker(_named("m:latest", owner="library"), most=1, logprobs=False),
    "lm studio": Maker(_named("m", owner="organization_owner"), _lmstudio, most=1),
    "together": Maker([{"id": "m", "object": "model"}]),
    "litellm": Maker(_named("*", owner="openai")),
}  # fmt: skip


class DialectServer(LocalServer):
    """A server of one maker. ``failures`` are replies that come first, one a request; ``say``: an answer's text."""

    def __init__(
        self, maker: str, failures: tuple[Reply, ...] = (), say: Callable[[Body, int], str] | None = None
    ) -> None:
        super().__init__()
        self.maker = MAKERS[maker]
        self.path = self.maker.path
        self.failures = list(failures)
        self.say = say or (lambda body, place: f"answer {body.get('seed', 0) + place}")
        self.requests: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        query = urllib.parse.urlencode(self.maker.query)
        return f"{super().url}?{query}" if query else super().url

    def reply(self, asked: Asked) -> Reply:
        parts, maker = urllib.parse.urlsplit(asked.path), self.maker
        missing = 404, {"error": {"code": "404", "message": "Resource not found"}}
        failure = None
        if asked.method == "POST":
            with self.guard:
                self.requests.append({"path": parts.path, **asked.body})
                failure = self.failures.pop(0) if self.failures else None
        if maker.query and dict(urllib.parse.parse_qsl(parts.query)) != maker.query:
            return missing
        if maker.key_header and not asked.headers.get(maker.key_header):
            text = "Access denied due to invalid subscription key or wrong API endpoint."
            return 401, {"error": {"code": "401", "message": text}}
        if asked.method == "GET":
            return missing if maker.models is None else (200, maker.models)
        return failure or self.answer(parts.path.removeprefix(maker.path), asked.body)

    def answer(self, path: str, body: Body) -> Reply:
        maker = self.maker
        if path not in ("/chat/completions", *(("/completions",) if maker.completions else ())):
            return 404, {"detail": "Not Found"}
        if (refused := maker.refuses(body)) is not None:
            return refused
        prompt = "\n".join(m["content"] for m in body["messages"]) if "messages" in body else str(body["prompt"])
        if "BOMB" in prompt:
            return maker.bomb()
        n_prompt = TOKENS_A_WORD * len(prompt.split())
        if n_prompt + 8 > maker.context:
            return maker.too_long(n_prompt, maker.context)
        choices = [self.choice(body, i) for i in range(min(body.get("n", 1), maker.most))]
        counted = 1 if maker.usage_of_one else len(choices)
        return 200, {"choices": choices, "error": None,
                     "usage": {"prompt_tokens": n_prompt, "completion_tokens": 2 * counted}}  # fmt: skip

    def choice(self, body: Body, i: int) -> dict[str, Any]:
        maker, text = self.maker, self.say(body, i)
        chosen = [{"token": word, "logprob": -0.25} for word in text.split()]
        logprobs = {"content": chosen} if maker.logprobs and body.get("logprobs") else None
        said = {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
        return {"index": i, **said, "logprobs": logprobs, "finish_reason": "stop"}


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
