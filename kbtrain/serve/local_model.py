"""A model in this process that answers chats like a server: for trying out. One answer is drawn at a time.

A field or a message that it cannot answer to is refused by name: no server behind the gate could report it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field

from kbtrain.answers.thoughts import may_open_thought
from kbtrain.llm.base import Sampling
from kbtrain.llm.sampler.draw import DrawnTokens
from kbtrain.llm.sampler.observer import Observer, PromptRows, Row
from kbtrain.llm.sampler.sampler import BatchSampler
from kbtrain.llm.sampler.shared_prefix_check import prefix_problem
from kbtrain.models.load import load_model
from kbtrain.prompts.kbm import TEMPLATE_OPTIONS
from kbtrain.prompts.template_marks import break_special_tokens
from kbtrain.records import GREEDY, Sample
from kbtrain.serve.decide import as_exception
from kbtrain.serve.exchange import Header, Upload, place_of
from kbtrain.serve.problem import Busy, Refused, read_fields, read_object
from kbtrain.serve.request_forms import text
from kbtrain.serve.upstream import UpstreamReply

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

MAX_WAITING = 32
COLDEST = 1e-6  # temperature and mass of top_p: below, logits leave the range of their numbers, or no token is left
MOST = 1_000_000  # tokens
# fields about the request, which change no answer
ABOUT = {
    "messages", "model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
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
Stop = Annotated[str, Field(min_length=1, max_length=999)]


class ChatFields(BaseModel):
    """Fields that set the answer."""

    stream: bool | None = Field(None, description="true or false")
    stream_options: Any = None
    max_tokens: int | None = Field(None, ge=1, le=MOST, description=f"a whole number from 1 to {MOST}")
    max_completion_tokens: int | None = Field(None, ge=1, le=MOST, description=f"a whole number from 1 to {MOST}")
    temperature: float | None = Field(None, ge=0, le=2, description="a number from 0 to 2")
    top_p: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1")
    top_k: int | None = Field(None, ge=-1, le=MOST, description=f"a whole number from -1 to {MOST}")
    seed: Any = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = Field(
        None, description="a text or at most 16 of them"
    )

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def sampling(self, room: int) -> Sampling:
        """Settings of the sampler, for an answer of at most ``room`` tokens."""
        return Sampling(
            seed=secrets.token_hex(8) if self.seed is None else str(self.seed),
            temperature=max(self.temperature or 1.0, COLDEST),
            top_k=max(0, self.top_k or 0),  # vLLM's word for all is -1
            top_p=max(1.0 if self.top_p is None else self.top_p, COLDEST),
            max_new_tokens=min(self.max_completion_tokens or self.max_tokens or 512, room),
            stop=(),
        )


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


class LocalModel:
    """Implements :class:`~kbtrain.serve.upstream.Upstream`. ``sampler``: of one answer."""

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

    async def models(self, headers: Iterable[Header] = ()) -> list[Any]:
        return [{"id": self.name, "object": "model", "created": 0, "owned_by": "local"}]

    async def close(self) -> None:
        """End the thread; an answer under way is ended at its next token by its request's end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def check(self, path: str, body: Mapping[str, Any]) -> None:
        self._read(body)

    def _read(self, body: Mapping[str, Any]) -> tuple[ChatFields, tuple[int, ...]]:
        """Settings of the answer, and the prompt's tokens. Raises :class:`Refused` for a request that cannot be met."""
        if body.get("model") not in {None, self.name}:
            raise Refused(404, "model_not_found", f"the model here is '{self.name}'", "model")
        check_fields(body)
        fields = read_fields(ChatFields, body)
        prompt = chat_text(self.tokenizer, body["messages"])
        special = not self.tokenizer.chat_template  # a template writes its special tokens itself
        ids = self.tokenizer(prompt, add_special_tokens=special)["input_ids"]
        if len(ids) >= self.room:
            message = f"the prompt has {len(ids)} tokens; this model has room for {self.room - 1}"
            raise Refused(400, "context_length_exceeded", message, "messages")
        return fields, tuple(ids)

    @contextlib.asynccontextmanager
    async def send(
        self, path: str, data: bytes | Upload, headers: Iterable[Header], query: bytes = b"", method: str = "POST"
    ) -> AsyncIterator[UpstreamReply]:
        """As :meth:`kbtrain.serve.upstream.Upstream.send`. Raises :class:`Refused` for settings that cannot be met."""
        assert isinstance(data, bytes)  # of its paths' POST; no other path comes here
        fields, ids = self._read(read_object(data))
        if self._waiting >= MAX_WAITING:
            raise Busy(f"{self._waiting} answers are asked for")
        loop, parts, stopped = asyncio.get_running_loop(), Parts(), threading.Event()

        def call(function: Callable[..., None], *arguments: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no client waits
                loop.call_soon_threadsafe(function, *arguments)

        def work() -> None:
            try:
                if not stopped.is_set():
                    call(parts.put_nowait, self._draw(fields, ids, lambda part: call(parts.put_nowait, part), stopped))
            except _Stopped:
                pass
            except BaseException as error:  # noqa: BLE001 - a library's panic too is this request's, not the thread's end
                logger.error("model: %s\n%s", type(error).__name__, place_of(error))
                call(parts.put_nowait, as_exception(error))

        self._waiting += 1
        self._thread.submit(work).add_done_callback(lambda _: call(self._finish))
        try:
            if fields.stream:
                kind = b"text/event-stream; charset=utf-8"
                yield UpstreamReply(200, [(b"content-type", kind)], self._events(fields, ids, parts))
            else:
                whole = await self._full_reply(ids, parts)
                length = (b"content-length", str(len(whole)).encode())
                yield UpstreamReply(200, [(b"content-type", b"application/json"), length], _once(whole))
        finally:
            stopped.set()

    def _finish(self) -> None:
        self._waiting -= 1

    def _draw(
        self, fields: ChatFields, ids: tuple[int, ...], send: Callable[[str], None], stopped: threading.Event
    ) -> Sample:
        """Draw an answer and ``send`` its text in pieces. Raises :class:`_Stopped` once ``stopped`` is set."""
        sent, stops = "", fields.stops
        # The end of the text may be the beginning of a stop string: it waits for the next tokens.
        held = max((len(stop) - 1 for stop in stops), default=0)

        def ends(row: Row) -> bool:
            nonlocal sent
            if stopped.is_set():
                raise _Stopped
            cut = so_far = self.sampler.stopper.text(row.tokens, row.opened)
            for stop in stops:
                cut = cut.split(stop, 1)[0]
            ended = row.finish is not None or len(cut) < len(so_far)
            ready = cut if ended else cut[: max(0, len(cut) - held)].rstrip("\ufffd")
            if not ended and may_open_thought(so_far):
                return False
            if len(ready) > len(sent):
                send(ready[len(sent) :])
                sent = ready
            return len(cut) < len(so_far)

        sampler = self.sampler.observed(_Tokens(ends))
        sampler.sampling = fields.sampling(self.room - len(ids))
        index = GREEDY if fields.temperature == 0 else 0
        ((sample,),) = sampler.sample([PromptRows("request", "llm", ids, (index,))])
        return sample

    async def _full_reply(self, ids: Sequence[int], parts: Parts) -> bytes:
        words = ""
        while not isinstance(part := await parts.get(), Sample):
            if isinstance(part, Exception):
                raise Refused(502, "model_failed", f"the model failed ({type(part).__name__})")
            words += part
        reply = self._reply("chat.completion")
        choice = _choice(part, message={"role": "assistant", "content": words})
        return _json(reply | {"choices": [choice], "usage": _usage(ids, part)})

    async def _events(self, fields: ChatFields, ids: Sequence[int], parts: Parts) -> AsyncIterator[bytes]:
        """Server-sent events, one a piece of text."""
        reply, role = self._reply("chat.completion.chunk"), {"role": "assistant"}
        part: str | Sample | Exception = ""
        while not isinstance(part, Sample):
            part = await parts.get()
            if isinstance(part, Exception):
                raise part
            content = {"content": part} if isinstance(part, str) else {}
            yield _event(reply | {"choices": [_choice(part, delta=role | content)]})
            role = {}  # in the first event alone
        options = fields.stream_options
        if isinstance(options, dict) and options.get("include_usage") is True:
            yield _event(reply | {"choices": [], "usage": _usage(ids, part)})
        yield b"data: [DONE]\n\n"

    def _reply(self, kind: str) -> dict[str, Any]:
        """The common fields of a reply's objects in OpenAI's protocol."""
        name = f"kbtrain-{secrets.token_hex(12)}"
        return {"id": name, "object": kind, "created": int(time.time()), "model": self.name}


Parts = asyncio.Queue["str | Sample | Exception"]  # of an answer: its texts, then the sample or an error


def _choice(part: str | Sample, **content: Any) -> dict[str, Any]:
    finish = None
    if isinstance(part, Sample):
        finish = "length" if part.finish == "length" else "stop"
    return {"index": 0, "finish_reason": finish, "logprobs": None, **content}


def _usage(ids: Sequence[int], sample: Sample) -> dict[str, int]:
    total = len(ids) + sample.n_tokens
    return {"prompt_tokens": len(ids), "completion_tokens": sample.n_tokens, "total_tokens": total}


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + _json(value) + b"\n\n"


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def check_fields(body: Mapping[str, Any]) -> None:
    """Raise :class:`Refused` for the first field that would have to change the answer and cannot."""
    for name, value in body.items():
        if name in ABOUT or name in ChatFields.model_fields or value is None:
            continue
        neutral = NEUTRAL.get(name, ())
        if not any(value == default and isinstance(value, bool) == isinstance(default, bool) for default in neutral):
            leave = f"leave it out or give {json.dumps(neutral[0])}" if neutral else "leave it out"
            raise Refused(400, "unsupported", f"field '{name:.40}': nothing this model can do; {leave}", f"{name:.40}")


def chat_text(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]]) -> str:
    """The chat template's text of messages of OpenAI's protocol; without a template their texts, one a line.

    Raises :class:`Refused` for messages of anything but text, and for one that the template fails on or skips.
    """

    def refused(place: int, problem: str) -> Refused:
        return Refused(400, "unsupported", f"field 'messages': message {place}: {problem}", "messages")

    turns: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        role, parts = message.get("role"), message.get("content")
        for part in parts if isinstance(parts, list) else ():
            if not isinstance(part.get("text"), str) or part.get("type") not in TEXT:
                raise refused(place, "this model reads text alone")
        if name := next((name for name in UNREAD if message.get(name)), None):  # clients send empty ones along
            raise refused(place, f"role '{role}', field '{name}': the model in this process reads text alone")
        turns.append({"role": role, "content": text(dict(message))})
    if not tokenizer.chat_template:
        return "\n".join(turn["content"] for turn in turns)
    # as in the prompts of labels (render_chat)
    turns = [{**turn, "content": break_special_tokens(tokenizer, turn["content"])} for turn in turns]

    def rendered(contents: Iterable[str]) -> str:
        marked = [{**turn, "content": content} for turn, content in zip(turns, contents, strict=True)]
        try:
            return str(tokenizer.apply_chat_template(marked, tokenize=False, **TEMPLATE_OPTIONS))
        except Exception:  # noqa: BLE001 - a template raises any exception
            raise Refused(400, "messages", "the model's chat template takes no such messages", "messages") from None

    # Templates drop roles that they do not know and report nothing. A mark in place of each text shows which.
    marks = [f"mark{place}of{len(turns)}" for place in range(len(turns))]
    with_marks = rendered(marks)
    for place, (turn, mark) in enumerate(zip(turns, marks, strict=True)):
        if turn["content"].strip() and mark not in with_marks:
            raise refused(place, f"role '{turn['role']}', field 'content': the model's chat template leaves it out")
    return rendered(turn["content"] for turn in turns)
