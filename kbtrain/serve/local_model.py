"""A model in this process that answers chats like a server: for trying out. One answer is drawn at a time.

A stream has the whole answer in one event. A field or a message that it cannot answer to is refused by name: no server
behind the gate could report it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field

from kbtrain.llm.base import Sampling
from kbtrain.llm.sampler.draw import DrawnTokens
from kbtrain.llm.sampler.observer import Observer, PromptRows, Row
from kbtrain.llm.sampler.sampler import BatchSampler, Stopper
from kbtrain.models.load import load_model
from kbtrain.prompts.kbm import TEMPLATE_OPTIONS
from kbtrain.prompts.template_marks import break_special_tokens
from kbtrain.records import GREEDY, Sample
from kbtrain.serve.exchange import Header, Upload, place_of
from kbtrain.serve.problem import Busy, Refused, as_json, read_fields, read_object
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


class _Ending(Observer):
    """Ends the answer at the token at which its client has left."""

    def __init__(self, stopped: threading.Event) -> None:
        self.stopped = stopped

    def on_token(self, rows: Sequence[Row], logits: torch.Tensor, drawn: DrawnTokens) -> None:
        if self.stopped.is_set():
            raise _Stopped


class LocalModel:
    """Implements :class:`~kbtrain.serve.upstream.Upstream`. ``sampler``: of one answer."""

    paths: Set[str] | None = frozenset({"chat/completions"})

    def __init__(self, name: str, dtype: str = "auto") -> None:
        self.name = name
        self.model, self.tokenizer = load_model(name, dtype)
        config = self.model.config.get_text_config()
        self.room = int(getattr(config, "max_position_embeddings", None) or 2048)
        self.sampler = BatchSampler(self.model, self.tokenizer, Sampling(stop=()))
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
        stopped = threading.Event()
        self._waiting += 1
        try:
            sample = await asyncio.wrap_future(self._thread.submit(self._draw, fields, ids, stopped))
        except Exception as error:  # noqa: BLE001 - of any library
            logger.error("model: %s\n%s", type(error).__name__, place_of(error))
            raise Refused(502, "model_failed", f"the model failed ({type(error).__name__})") from None
        finally:
            stopped.set()
            self._waiting -= 1
        kind = b"text/event-stream; charset=utf-8" if fields.stream else b"application/json"
        yield UpstreamReply(200, [(b"content-type", kind)], self._pieces(fields, ids, sample))

    def _draw(self, fields: ChatFields, ids: tuple[int, ...], stopped: threading.Event) -> Sample:
        """Draw an answer. Raises :class:`_Stopped` once ``stopped`` is set."""
        sampler = self.sampler.observed(_Ending(stopped))
        sampler.sampling = fields.sampling(self.room - len(ids))
        sampler.stopper = Stopper(self.model, self.tokenizer, fields.stops)
        index = GREEDY if fields.temperature == 0 else 0
        ((sample,),) = sampler.sample([PromptRows("request", "llm", ids, (index,))])
        return sample

    async def _pieces(self, fields: ChatFields, ids: Sequence[int], sample: Sample) -> AsyncIterator[bytes]:
        """The reply's body: one JSON object, or server-sent events of which the first holds the whole text."""
        name, kind = f"kbtrain-{secrets.token_hex(12)}", "chat.completion" + (".chunk" if fields.stream else "")
        reply = {"id": name, "object": kind, "created": int(time.time()), "model": self.name}
        finish = "length" if sample.finish == "length" else "stop"
        choice = {"index": 0, "finish_reason": finish, "logprobs": None}
        total = len(ids) + sample.n_tokens
        usage = {"prompt_tokens": len(ids), "completion_tokens": sample.n_tokens, "total_tokens": total}
        said = {"role": "assistant", "content": sample.text}
        if not fields.stream:
            yield as_json(reply | {"choices": [{**choice, "message": said}], "usage": usage})
            return
        yield b"data: " + as_json(reply | {"choices": [{**choice, "delta": said}]}) + b"\n\n"
        options = fields.stream_options
        if isinstance(options, dict) and options.get("include_usage") is True:
            yield b"data: " + as_json(reply | {"choices": [], "usage": usage}) + b"\n\n"
        yield b"data: [DONE]\n\n"


def check_fields(body: Mapping[str, Any]) -> None:
    """Raise :class:`Refused` for the first field that would have to change the answer and cannot."""
    for name, value in body.items():
        if name in ABOUT or name in ChatFields.model_fields or value is None:
            continue
        neutral = NEUTRAL.get(name, ())
        if not any(value == default and isinstance(value, bool) == isinstance(default, bool) for default in neutral):
            leave = f"remove it or give {json.dumps(neutral[0])}" if neutral else "remove it"
            raise Refused(400, "unsupported", f"field '{name:.40}': this model cannot do it; {leave}", f"{name:.40}")


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
                raise refused(place, "this model reads only text")
        if name := next((name for name in UNREAD if message.get(name)), None):  # clients send empty ones along
            raise refused(place, f"role '{role}', field '{name}': the model in this process reads only text")
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
            raise refused(place, f"role '{turn['role']}', field 'content': the model's chat template drops it")
    return rendered(turn["content"] for turn in turns)
