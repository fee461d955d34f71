"""Send a request to a model server, repeated with back-off after passing errors, else one line with the cause.

Repeated: no connection, a time-out, the statuses of :data:`PASSING`, and a reply of status 200 with wrong content (cut
off, no JSON, no choices). A prompt that the server refuses is a :class:`PromptRefusal`. Bodies of errors are those of
OpenAI and Azure (``error`` with ``code`` and ``innererror``), vLLM (``object: error``), Mistral and FastAPI
(``detail``), Gemini (a list of errors), llama.cpp, OpenRouter, MiniMax and Baidu (inside a reply of status 200).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import httpx2

from kbtrain.answers.words import LISTS, pattern
from kbtrain.errors import UserError, strike
from kbtrain.llm.replies import LIMITS
from kbtrain.net import (
    ERROR_EVENTS,
    LARGEST,
    LONGEST_ASKED,
    Retry,
    by_proxy,
    reply_json,
    retry_after,
    split_query,
    states_error,
    tls,
)
from kbtrain.runtime.event_loop import run
from kbtrain.runtime.progress import say_line
from kbtrain.show import count_of

RefusalKind = Literal["content_filter", "context_length", "other"]
PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 525, 529, 530, 599})
_OF_REQUEST = frozenset({400, 403, 413, 422, 451})  # statuses by which a server refuses what a request holds
_OF_PROMPT_TOO = frozenset({424, 500, 502})  # by these servers refuse a prompt in words, too

_QUOTA_CODES = LISTS["server"]["quota"]
_QUOTA = pattern("server_quota")
_OVER_QUOTA = pattern("server_over_quota")
_WAIT = re.compile(
    r"\"retryDelay\":\s*\"(?P<delay>[\d.]+)s\"|(?:retry|try again) (?:in|after) "
    r"(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m(?!s))?(?P<s>\d+(?:\.\d+)?) ?(?P<unit>m?s)",
    re.I,
)
_FILTER_CODES = LISTS["server"]["filter"]
_FILTER = pattern("server_filter")
_LENGTH_CODES = LISTS["server"]["length"]
_LENGTH = pattern("server_length")
_WHOLE = LIMITS | LISTS["server"]["ended"] | {""}  # finish reasons of answers that ended, or reached their limit
_REFUSED = re.compile(r"filter|safety|sensitive|refus|moderat|block|prohibited|recitation|spii|guardrail|policy|risk")
_IMAGE = re.compile(r"image (input|url|content)|not support (image|vision|multimodal)", re.I)


class PromptRefusal(Exception):
    """A server refuses this prompt, and another try would not help. ``str``: kind, and the server's words."""

    def __init__(self, kind: RefusalKind, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


@dataclass(frozen=True)
class ServerError:
    """One error of a server: HTTP status (or the code that stands for it), short message, codes without signs."""

    status: int
    message: str
    codes: frozenset[str] = frozenset()
    wait: float | None = None  # seconds that the body asks to wait

    @property
    def text(self) -> str:
        return f"status {self.status} ({self.message})"

    @property
    def is_quota(self) -> bool:
        """True where the account has no money or quota left, which no waiting cures."""
        if self.status == 402 or self.codes & _QUOTA_CODES or _QUOTA.search(self.message):
            return True
        return self.wait is None and _OVER_QUOTA.search(self.message) is not None

    @property
    def refusal(self) -> RefusalKind | None:
        """Kind of refusal of the prompt; None where the error is not about the prompt."""
        in_words = self.status in _OF_REQUEST | _OF_PROMPT_TOO
        if self.codes & _FILTER_CODES or (in_words and _FILTER.search(self.message)):
            return "content_filter"
        if self.codes & _LENGTH_CODES or self.status == 413 or (in_words and _LENGTH.search(self.message)):
            return "context_length"
        return "other" if _IMAGE.search(self.message) or self.status in {400, 422, 451} else None


def read_error(status: int, text: str) -> ServerError:
    """The error that a reply states; of a reply of status 200 the status is that of its ``error.code``, or 502."""
    body: Any = None
    with contextlib.suppress(ValueError):
        body = reply_json(text)  # struck before it is cut: a part of a key could not be
    codes = frozenset(re.sub(r"[\W_]", "", str(code).lower()) for code in _codes(body, 0))
    if re.search(r"\"quotaId\":\s*\"\w*PerDay", text):  # Gemini's: a wait of seconds is asked for all the same
        codes |= {"insufficientquota"}
    if status == 200:
        numbers = [int(code) for code in codes if re.fullmatch(r"[45]\d\d", code)]
        status = numbers[0] if numbers else 502
    return ServerError(status, error_message(strike(text) if body is None else body), codes, _wait(text))


def _wait(text: str) -> float | None:
    """Seconds that an error's text asks to wait: 26s, 1.5 s, 120ms, 7m12.5s; None where it names none."""
    asked = _WAIT.search(text)
    if asked is None:
        return None
    if asked["delay"]:
        return float(asked["delay"].rstrip(".") or 0) or None
    seconds = float(asked["s"]) / (1000 if asked["unit"].lower() == "ms" else 1)
    return 3600 * int(asked["h"] or 0) + 60 * int(asked["m"] or 0) + seconds


def whole_reply(text: str) -> Any:
    """The JSON of a reply; of a stream the object that its chunks make up. Raises ValueError for anything else."""
    if not text.lstrip().startswith(("data:", "event:", ":")):
        return reply_json(text)
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    ended = failed = False
    # not splitlines: a raw U+2028 within an answer ends no line of a stream
    for line in re.split(r"\r\n|\n|\r", text):
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        ended |= data == "[DONE]"
        field, _, value = line.partition(":")
        failed |= field == "error" or (field == "event" and value.strip() in ERROR_EVENTS)
        chunk = reply_json(data) if data and data != "[DONE]" else {}
        if isinstance(chunk, dict) and chunk and (failed or states_error(chunk)):
            return {"error": chunk.get("error") or chunk}
        parts = (chunk.get("choices") or []) if isinstance(chunk, dict) else None
        if not isinstance(parts, list) or not all(map(_is_part, parts)):
            raise ValueError("a chunk of another form")
        whole |= {key: value for key, value in chunk.items() if key != "choices" and value is not None}
        for part in parts:
            _add_part(choices.setdefault(part.get("index") or 0, {}), part)
    for choice in choices.values():
        if failed or (choice.get("finish_reason") is None and not ended):
            choice["finish_reason"] = "broken off"
    return {**whole, "choices": [choices[index] for index in sorted(choices)]}


def _add_part(choice: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add a chunk's part of an answer: texts grow, lists of log-probabilities too, and other fields are the newest."""
    if "delta" in part or "message" in part:
        message, whole = choice.setdefault("message", {}), part.get("message") or {}
        kept, said = message.get("content"), whole.get("content")
        if kept and isinstance(kept, str) and isinstance(said, str) and said.startswith(kept):
            message |= whole  # the last part has the whole text again
        else:
            _grow(message, part.get("delta") or whole)
    else:
        _grow(choice, {"text": part.get("text") or ""})
    if part.get("logprobs"):
        _grow(choice.setdefault("logprobs", {}), part["logprobs"])
    choice |= {key: part[key] for key in ("index", "finish_reason", "error") if part.get(key) is not None}


def error_message(value: Any) -> str:
    """A server's error message in one short line, from its reply's JSON or text; empty where it says nothing."""
    for _ in range(8):
        if isinstance(value, list) and value:
            value = value[0]
        elif isinstance(value, dict):
            inner = next((value[key] for key in _WORDS if value.get(key)), None)
            if inner is None:
                break
            place = value.get("loc")
            if isinstance(place, list) and place and isinstance(inner, str):
                inner = f"{place[-1]}: {inner}"
            value = inner
        elif isinstance(value, str) and value.startswith("{"):  # JSON inside a message, as Mistral sends it
            try:
                value = reply_json(value)
            except ValueError:
                break
        else:
            break
    return " ".join(str(value).split())[:200] if value else ""


_WORDS = ("error", "message", "detail", "msg", "error_msg", "status_msg", "errmsg", "Error", "Message", "errors",
          "base_resp", "Response")  # fmt: skip
_CODES = ("code", "type", "status", "error_type", "error_code", "status_code", "errcode", "Code")


def _codes(value: Any, depth: int) -> Iterator[Any]:
    """Values of codes, types and statuses in an error, and in the errors and reasons inside it."""
    if depth > 4:
        return
    if isinstance(value, str) and re.fullmatch(r"\w+", value):  # {"error": "billing_error"}
        yield value
    elif isinstance(value, list):
        for item in value[:4]:
            yield from _codes(item, depth + 1)
    elif isinstance(value, dict):
        for key in _CODES:
            if isinstance(value.get(key), str | int):
                yield value[key]
        for key in (*_WORDS, "innererror", "metadata"):
            yield from _codes(value.get(key), depth + 1)


SILENCE = 5.0  # seconds until a line says what is waited for
MINUTE = 60.0  # seconds until it is printed again
LATE = "no whole answer in time"
NO_QUOTA = "the account has no quota left: add credit or take another key"
_HINTS = {
    401: "; set the key (see server_key_env)",
    403: "; is the key allowed to use this model?",
    # a server that lacks an endpoint and one that lacks a model say the same
    404: "; check server_url and server_model: does this server have that route (server_endpoint)?",
}


def _grow(whole: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add a part's fields: texts and lists are put in a row, else the newer one stays; null adds nothing."""
    for key, value in part.items():
        kept = whole.get(key)
        joins = key != "role" and any(isinstance(kept, kind) and isinstance(value, kind) for kind in (str, list))
        if value is not None or key not in whole:
            whole[key] = kept + value if joins else value


def _is_part(part: object) -> bool:
    """True for a chunk's part of an answer, by the types of the fields that are read."""
    if not isinstance(part, dict) or not isinstance(part.get("index") or 0, int):
        return False
    return all(isinstance(part.get(field) or {}, dict) for field in ("delta", "message", "logprobs"))


class Forbidden(UserError):
    """Status 403: the key is not allowed to, or a firewall refuses this prompt alone. ``message``: the server's."""

    def __init__(self, text: str, message: str) -> None:
        super().__init__(text)
        self.message = message


def azure_hint(url: str) -> str:
    """What an address of Azure lacks; empty for a whole one, and for others."""
    is_azure = "/openai/deployments/" in url or ".azure.com" in url
    if not is_azure or "api-version=" in url or "/openai/v1" in url:
        return ""
    return "; Azure's addresses end in ?api-version=VERSION, or in /openai/v1"


class NoReply(Exception):
    """A try that failed and may be repeated; ``asked`` is the server's ``Retry-After`` in seconds, ``is_empty``: the
    reply is well-formed and has no answer in it."""

    def __init__(self, why: str, wait: float | None = None, is_empty: bool = False) -> None:
        super().__init__(why)
        self.asked = wait
        self.is_empty = is_empty


class _OpenRequests:
    """Requests to an address that are under way. While some wait for another try, or no request is answered for a
    minute, a line says so within :data:`SILENCE` seconds, and again after a minute."""

    def __init__(self, address: str) -> None:
        self.address, self.n = address, 0
        self.failed: dict[object, str] = {}  # the newest reason of each that is tried again
        self.changed = self._earliest = 0.0  # when the last one began or ended; for the next line
        self._loop: asyncio.AbstractEventLoop | None = None  # that looks next

    def add(self, n: int) -> None:
        """Count a request that begins (1) or ends (-1)."""
        self.n, self.changed = self.n + n, time.monotonic()
        self._watch()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        if self.n and self._loop is not loop:
            self._loop = loop
            loop.call_later(SILENCE, self._look)

    def _look(self) -> None:
        self._loop, now = None, time.monotonic()
        silent = now - self.changed
        why = next(reversed(self.failed.values()), f"no answer for {silent:.0f} s" * (silent >= MINUTE))
        if why and self.n and now >= self._earliest:
            say_line(f"server {self.address}: {count_of(len(self.failed) or self.n, 'request')} waiting: {why}")
            self._earliest = now + MINUTE
        self._watch()


_open_requests = functools.cache(_OpenRequests)  # one an address: clients and loops come and go


async def post(
    client: httpx2.AsyncClient, path: str, body: Mapping[str, Any], retry: Retry, holds: str = "choices"
) -> dict[str, Any]:
    """The JSON object that answers ``body``, with something in its field ``holds``. Raises :class:`UserError`, and
    :class:`PromptRefusal` for a body that the server refuses."""
    n_failed, request, opened = 0, object(), _open_requests(str(client.base_url))
    opened.add(1)
    try:
        while True:
            try:
                return await _post_once(client, path, body, holds)
            except NoReply as error:
                n_failed += 1
                if n_failed >= retry.tries:
                    if error.is_empty and holds == "choices":
                        raise PromptRefusal("other", f"{error}, {n_failed} times") from None
                    kept = "what was finished is kept, run the same command again when the server works"
                    raise UserError(f"server {client.base_url}: {error}, {n_failed} times; {kept}") from None
                opened.failed[request] = str(error)
                await asyncio.sleep(retry.seconds(n_failed, error.asked))
    finally:
        opened.failed.pop(request, None)
        opened.add(-1)


async def _post_once(client: httpx2.AsyncClient, path: str, body: Mapping[str, Any], holds: str) -> dict[str, Any]:
    response, text = await exchange(client, "POST", path, body)
    if response.status_code != 200:
        wait = retry_after(response.headers.get("retry-after"), LONGEST_ASKED)
        raise _failure(client, read_error(response.status_code, text), wait)
    try:
        reply: Any = whole_reply(text)
    except ValueError:
        raise NoReply(f"a reply that is not JSON ({strike(text)[:60]!r})") from None
    if isinstance(reply, dict) and states_error(reply):
        raise _failure(client, read_error(200, json.dumps(reply)), None)
    if not isinstance(reply, dict) or not reply.get(holds):
        raise NoReply(f"a reply without {holds} ({strike(text)[:100]!r})", is_empty=isinstance(reply, dict))
    _check_ends(reply)
    return reply


def _check_ends(reply: Mapping[str, Any]) -> None:
    """Raise :class:`PromptRefusal` for a refused answer, and :class:`NoReply` for one that broke off (by an error, or
    a finish reason that is not known): half of an answer is none."""
    choices = reply.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        reason, message = choice.get("finish_reason"), choice.get("message")
        end = reason.lower() if isinstance(reason, str) else ""
        refusal = _refusal_of(message) if isinstance(message, dict) else None
        native = str(choice.get("native_finish_reason") or "").lower()  # OpenRouter's, of the provider itself
        filtered = '"filtered": true' in json.dumps(choice.get("content_filter_results"))  # Azure's
        if refusal or filtered or _REFUSED.search(end) or _REFUSED.search(native):
            raise PromptRefusal("content_filter", error_message(refusal) or f"finish reason {reason}")
        if choice.get("error") or end not in _WHOLE:
            why = error_message(choice.get("error")) or f"finish reason {strike(end)[:60]}"
            raise NoReply(f"an answer that broke off ({why})", is_empty=True)


def _refusal_of(message: Mapping[str, Any]) -> Any:
    """What a message says in place of an answer, in a field or in a part of its content; None for an answer."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    said = next((part["refusal"] for part in parts if isinstance(part, dict) and part.get("refusal")), None)
    return said or (None if content else message.get("refusal"))


def _failure(client: httpx2.AsyncClient, error: ServerError, wait: float | None) -> Exception:
    """The exception that a server's error stands for; ``wait``: its ``Retry-After``."""
    if error.is_quota:
        return UserError(f"server {client.base_url}: {error.text}; {NO_QUOTA}, then run the same command again")
    if error.refusal is not None:
        return PromptRefusal(error.refusal, error.text)
    if error.status in PASSING:
        return NoReply(error.text, error.wait if wait is None else wait)
    text = f"server {client.base_url}: {error.text}{_HINTS.get(error.status, '')}"
    if error.status == 403:
        return Forbidden(text, error.text)
    return UserError(text + (azure_hint(str(client.base_url)) if "api-version" not in client.params else ""))


async def exchange(
    client: httpx2.AsyncClient, method: str, path: str, body: Mapping[str, Any] | None = None
) -> tuple[httpx2.Response, str]:
    """One request: the reply, of any status, and its text, within the client's time and :data:`LARGEST` bytes. Raises
    :class:`NoReply` where none comes, and :class:`UserError` for an address that cannot be asked."""
    timeout = client.timeout
    deadline = None if timeout.read is None else timeout.read + (timeout.connect or 0.0)
    try:
        async with asyncio.timeout(deadline), client.stream(method, path, json=body) as response:
            data = bytearray()
            async for chunk in response.aiter_bytes():
                data += chunk
                if len(data) > LARGEST:
                    raise NoReply(f"a reply of more than {LARGEST >> 20} MiB")
            return response, data.decode("utf-8", "replace")
    except (TimeoutError, httpx2.ReadTimeout):  # of the whole request: a reply may come a byte at a time
        raise NoReply(LATE) from None
    except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
        raise UserError(f"key 'server_url': {error}") from None
    except httpx2.TimeoutException as error:
        raise NoReply(f"no answer in time ({type(error).__name__})") from None
    except (httpx2.RequestError, ValueError) as error:  # a ValueError: headers or a compression that cannot be read
        raise NoReply(f"connection failed ({type(error).__name__}: {strike(str(error))[:100]})") from None


def ask_once(
    url: str, method: str, path: str, headers: Mapping[str, str], seconds: float, body: Mapping[str, Any] | None = None
) -> tuple[httpx2.Response, str]:
    """:func:`exchange` with its own client, and at most ``seconds`` for connecting and for reading; a line on stderr
    says what is waited for."""
    address, query = split_query(url)
    waits = f"server {address}: waiting for its answer to /{path}, {seconds - SILENCE:.0f} s left"

    async def ask() -> tuple[httpx2.Response, str]:
        asyncio.get_running_loop().call_later(SILENCE, say_line, waits)  # unless the loop ends before
        async with httpx2.AsyncClient(
            base_url=address, params=query, headers=dict(headers), timeout=seconds, verify=tls(),
            trust_env=by_proxy(url),
        ) as client:  # fmt: skip
            return await exchange(client, method, path, body)

    return run(ask())
