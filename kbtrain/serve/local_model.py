"""A model in this process that answers chats like a server: for trying out. One answer is drawn at a time.

A field or a message that it cannot answer to is refused by name: no server behind the gate could report it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kbtrain.answers.thoughts import may_open_thought
from kbtrain.llm.base import Sampling
from kbtrain.llm.sampler.draw import DrawnTokens
from kbtrain.llm.sampler.observer import Observer
from kbtrain.llm.sampler.rows import PromptRows, Row
from kbtrain.llm.sampler.sampler import BatchSampler
from kbtrain.llm.sampler.shared_prefix_check import prefix_problem
from kbtrain.models.load import load_model
from kbtrain.prompts.kbm import TEMPLATE_OPTIONS
from kbtrain.prompts.template_marks import break_special_tokens
from kbtrain.records import GREEDY, Sample
from kbtrain.serve.chat import text
from kbtrain.serve.exchange import Header, Upload, place_of
from kbtrain.serve.problem import Busy, Refused, read_object
from kbtrain.serve.upstream import UpstreamReply
from kbtrain.serve.worker import as_exception

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

MAX_WAITING = 32
DEFAULT_TOKENS = 512
COLDEST = 1e-6  # temperature and mass of top_p: below, logits leave the range of their numbers, or no token is left
# Fields that set the answer, then fields about the request.
FIELDS = {
    "messages", "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p",
    "top_k", "seed", "stop", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "prediction", "parallel_tool_calls",
}  # fmt: skip
# Clients send fields with their default, too: these values change no answer, null in no field.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,),
    "min_p": (0,), "min_tokens": (0,), "ignore_eos": (False,), "logit_bias": ({},), "logprobs": (False,),
    "top_logprobs": (0,), "response_format": ({"type": "text"},), "modalities": (["text"],),
    "reasoning_effort": ("none",), "verbosity": ("medium",), "tools": ([],), "tool_choice": ("none", "auto"),
    "functions": ([],), "function_call": ("none", "auto"),
}  # fmt: skip
TEXT = {None, "text", "input_text"}  # types of a message's parts that hold text
UNREAD = ("tool_calls", "function_call", "audio", "refusal")  # fields of a message beside its text
logger = logging.getLogger("kbtrain.serve")


class _Stopped(Exception):
    """The client left."""


class _Tokens(Observer):
    """Calls ``ends`` with the answer at each token as it is drawn; True ends it there."""

    def __init__(self, ends: Callable[[Row], bool]) -> None:
        self.ends = ends

    def on_token(self, rows: Sequence[Row], logits: torch.Tensor, drawn: DrawnTokens) -> None:
        (row,) = rows
        if self.ends(row):
            row.finish, row.feed = row.finish or "stop", []


@dataclass(frozen=True)
class LocalRequest:
    """A chat that can be answered: its prompt's tokens and its settings."""

    ids: tuple[int, ...]
    sampling: Sampling
    greedy: bool
    stop: tuple[str, ...]
    stream: bool
    usage: bool


@dataclass
class _Job:
    """One answer on its way from the model to the client; ``send`` takes texts, then the sample or an error."""

    request: LocalRequest
    send: Callable[[str | Sample | Exception], None]
    stopped: threading.Event = field(default_factory=threading.Event)


class LocalModel:
    """Implements :class:`~kbtrain.serve.upstream.Upstream`. ``sampler``: of one answer."""

    takes_tools = False
    paths: Set[str] | None = frozenset({"chat/completions"})

    def __init__(self, name: str, dtype: str = "auto") -> None:
        self.name = name
        self.model, self.tokenizer = load_model(name, dtype)
        config = self.model.config.get_text_config()
        self.room = int(getattr(config, "max_position_embeddings", None) or 2048)
        shared = prefix_problem(self.model, self.room) is None
        self.sampler = BatchSampler(self.model, self.tokenizer, Sampling(stop=()), shared)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._waiting = 0
        self._numbers = itertools.count(1)

    async def models(self, headers: Iterable[Header] = ()) -> list[Any]:
        return [{"id": self.name, "object": "model", "created": 0, "owned_by": "local"}]

    async def close(self) -> None:
        """End the thread; an answer under way is ended at its next token by its request's end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def check(self, path: str, body: Mapping[str, Any]) -> None:
        self._read(body)

    @contextlib.asynccontextmanager
    async def send(
        self, path: str, data: bytes | Upload, headers: Iterable[Header], query: bytes = b"", method: str = "POST"
    ) -> AsyncIterator[UpstreamReply]:
        """As :meth:`kbtrain.serve.upstream.Upstream.send`. Raises :class:`Refused` for settings that cannot be met."""
        assert isinstance(data, bytes)  # of its paths' POST; no other path comes here
        request = self._read(read_object(data))
        if self._waiting >= MAX_WAITING:
            raise Busy(f"{self._waiting} answers are asked for")
        loop, parts = asyncio.get_running_loop(), Parts()
        job = _Job(request, lambda part: _call(loop, lambda: parts.put_nowait(part)))
        self._waiting += 1
        future = self._thread.submit(self._run, job)
        future.add_done_callback(lambda _: _call(loop, self._finish))
        shape = _Shape(request, self.name, f"kbtrain-{next(self._numbers)}", int(time.time()))
        try:
            if request.stream:
                kind = b"text/event-stream; charset=utf-8"
                yield UpstreamReply(200, [(b"content-type", kind)], _events(shape, parts))
            else:
                whole = await _full_reply(shape, parts)
                length = (b"content-length", str(len(whole)).encode())
                yield UpstreamReply(200, [(b"content-type", b"application/json"), length], _once(whole))
        finally:
            job.stopped.set()

    def _finish(self) -> None:
        self._waiting -= 1

    def _run(self, job: _Job) -> None:
        if job.stopped.is_set():
            return
        try:
            job.send(self._draw(job))
        except _Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - a library's panic too is this request's, not the thread's end
            logger.error("model: %s\n%s", type(error).__name__, place_of(error))
            job.send(as_exception(error))

    def _draw(self, job: _Job) -> Sample:
        request, sent = job.request, ""
        # The end of the text may be the beginning of a stop string: it waits for the next tokens.
        held = max((len(stop) - 1 for stop in request.stop), default=0)

        def ends(row: Row) -> bool:
            nonlocal sent
            if job.stopped.is_set():
                raise _Stopped
            so_far = self.sampler.stopper.text(row.tokens, row.opened)
            cut = _cut_at_stop(so_far, request.stop)
            ended = row.finish is not None or len(cut) < len(so_far)
            ready = cut if ended else cut[: max(0, len(cut) - held)].rstrip("\ufffd")
            if not ended and may_open_thought(so_far):
                return False
            if len(ready) > len(sent):
                job.send(ready[len(sent) :])
                sent = ready
            return len(cut) < len(so_far)

        sampler = self.sampler.observed(_Tokens(ends))
        sampler.sampling = request.sampling
        index = GREEDY if request.greedy else 0
        ((sample,),) = sampler.sample([PromptRows("request", "llm", request.ids, (index,))])
        return sample

    def _read(self, body: Mapping[str, Any]) -> LocalRequest:
        if body.get("model") not in {None, self.name}:
            raise Refused(404, "model_not_found", f"the model here is '{self.name}'", "model")
        check_fields(body)
        prompt = chat_text(self.tokenizer, body["messages"])
        special = not self.tokenizer.chat_template  # a template writes its special tokens itself
        return read_request(body, self.tokenizer(prompt, add_special_tokens=special)["input_ids"], self.room)


def chat_text(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]]) -> str:
    """The chat template's text of messages of OpenAI's protocol; without a template their texts, one a line.

    Raises :class:`Refused` for messages of anything but text, and for one that the template fails on or skips.
    """
    turns = [_turn(place, message) for place, message in enumerate(messages)]
    if tokenizer.chat_template:  # as in the prompts of labels (render_chat)
        turns = [{**turn, "content": break_special_tokens(tokenizer, turn["content"])} for turn in turns]
    # Templates drop roles that they do not know and report nothing. A mark in place of each text shows which.
    marked = _rendered(tokenizer, [{**turn, "content": f"mark{i}of{len(turns)}"} for i, turn in enumerate(turns)])
    for place, turn in enumerate(turns):
        if turn["content"].strip() and f"mark{place}of{len(turns)}" not in marked:
            raise _refused(place, f"role '{turn['role']}', field 'content': the model's chat template leaves it out")
    return _rendered(tokenizer, turns)


def _turn(place: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """Role and text of a message."""
    parts = message["content"] if isinstance(message.get("content"), list) else ()
    if not all(isinstance(part.get("text"), str) and part.get("type") in TEXT for part in parts):
        raise _refused(place, "this model reads text alone")
    name = next((name for name in UNREAD if message.get(name)), None)  # clients send empty ones along
    if name is not None:
        role = message.get("role")
        raise _refused(place, f"role '{role}', field '{name}': the model in this process reads text alone")
    return {"role": message.get("role"), "content": text(dict(message))}


def _rendered(tokenizer: PreTrainedTokenizerBase, turns: Sequence[dict[str, Any]]) -> str:
    if not tokenizer.chat_template:
        return "\n".join(turn["content"] for turn in turns)
    try:
        return str(tokenizer.apply_chat_template(list(turns), tokenize=False, **TEMPLATE_OPTIONS))
    except Exception:  # noqa: BLE001 - a template raises any exception
        raise Refused(400, "messages", "the model's chat template takes no such messages", "messages") from None


def _refused(place: int, problem: str) -> Refused:
    return Refused(400, "unsupported", f"field 'messages': message {place}: {problem}", "messages")


def check_fields(body: Mapping[str, Any]) -> None:
    """Raise :class:`Refused` for the first field that would have to change the answer and cannot."""
    for name, value in body.items():
        if name in FIELDS or value is None:
            continue
        neutral = NEUTRAL.get(name, ())
        if not any(value == default and isinstance(value, bool) == isinstance(default, bool) for default in neutral):
            leave = f"leave it out or give {json.dumps(neutral[0])}" if neutral else "leave it out"
            raise Refused(400, "unsupported", f"field '{name:.40}': nothing this model can do; {leave}", f"{name:.40}")


def read_request(body: Mapping[str, Any], ids: list[int], room: int) -> LocalRequest:
    """The request of a prompt of these tokens. Raises :class:`Refused` for invalid settings, and for a prompt that
    leaves no token of the model's ``room``."""
    left = room - len(ids)
    if left < 1:
        message = f"the prompt has {len(ids)} tokens; this model has room for {room - 1}"
        raise Refused(400, "context_length_exceeded", message, "messages")
    temperature = _number(body, "temperature", 1.0, 0, 2)
    options = body.get("stream_options")
    usage = isinstance(options, dict) and options.get("include_usage") is True
    sampling = _sampling(body, temperature or 1.0, left)
    return LocalRequest(tuple(ids), sampling, temperature == 0, _stops(body), bool(body.get("stream")), usage)


def _sampling(body: Mapping[str, Any], temperature: float, left: int) -> Sampling:
    name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    most = int(_number(body, name, DEFAULT_TOKENS, 1, 1_000_000, whole=True))
    return Sampling(
        seed=str(body.get("seed")) if body.get("seed") is not None else secrets.token_hex(8),
        temperature=max(temperature, COLDEST),
        top_k=max(0, int(_number(body, "top_k", 0, -1, 1_000_000, whole=True))),  # vLLM's word for all is -1
        top_p=max(_number(body, "top_p", 1.0, 0, 1), COLDEST),
        max_new_tokens=min(most, left),
        stop=(),
    )


def _number(body: Mapping[str, Any], name: str, default: float, low: float, high: float, whole: bool = False) -> float:
    value = body.get(name)
    if value is None:
        return default
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        kind = "whole number" if whole else "number"
        raise Refused(400, "body", f"field '{name}': expected a {kind} from {low:g} to {high:g}", name)
    return value


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    stops = body.get("stop") or []
    stops = [stops] if isinstance(stops, str) else stops
    if (
        not isinstance(stops, list)
        or len(stops) > 16
        or not all(isinstance(s, str) and 0 < len(s) < 1000 for s in stops)
    ):
        raise Refused(400, "body", "field 'stop': expected a text or at most 16 of them", "stop")
    return tuple(stops)


def _cut_at_stop(so_far: str, stop: Sequence[str]) -> str:
    for string in stop:
        so_far = so_far.split(string, 1)[0]
    return so_far


@dataclass(frozen=True)
class _Shape:
    """Layout of an answer in OpenAI's protocol."""

    request: LocalRequest
    model: str
    id: str
    created: int

    def choice(self, words: str | None, finish: str | None, stream: bool, first: bool = False) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
        if not stream:
            return {**choice, "message": {"role": "assistant", "content": words}}
        role = {"role": "assistant"} if first else {}
        return {**choice, "delta": {**role, **({} if words is None else {"content": words})}}

    def object(self, choices: list[dict[str, Any]], stream: bool, usage: dict[str, int] | None = None) -> bytes:
        kind = "chat.completion.chunk" if stream else "chat.completion"
        reply = {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}
        return json.dumps(reply | ({} if usage is None else {"usage": usage}), ensure_ascii=False).encode()

    def event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        return b"data: " + self.object(choices, True, usage) + b"\n\n"

    def usage(self, sample: Sample) -> dict[str, int]:
        prompt, completion = len(self.request.ids), sample.n_tokens
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


Parts = asyncio.Queue["str | Sample | Exception"]


async def _events(shape: _Shape, parts: Parts) -> AsyncIterator[bytes]:
    """Server-sent events, one a piece of text."""
    first = True
    while True:
        part = await parts.get()
        if isinstance(part, Exception):
            raise part
        if isinstance(part, Sample):
            yield shape.event([shape.choice(None, _finish(part), True, first)])
            if shape.request.usage:
                yield shape.event([], shape.usage(part))
            yield b"data: [DONE]\n\n"
            return
        yield shape.event([shape.choice(part, None, True, first)])
        first = False


async def _full_reply(shape: _Shape, parts: Parts) -> bytes:
    words = ""
    while True:
        part = await parts.get()
        if isinstance(part, Exception):
            raise Refused(502, "model_failed", f"the model failed ({type(part).__name__})")
        if isinstance(part, Sample):
            return shape.object([shape.choice(words, _finish(part), False)], False, shape.usage(part))
        words += part


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _finish(sample: Sample) -> str:
    return "length" if sample.finish == "length" else "stop"


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: no client waits
        loop.call_soon_threadsafe(function)
