"""A model in this process that answers like a server: for trying out, behind the project's own sampler.

One answer is drawn at a time. Requests that ask for more than it can do are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch

from kbtrain.answers.thoughts import may_open_thought
from kbtrain.llm.base import Sampling
from kbtrain.llm.sampler.draw import Drawn
from kbtrain.llm.sampler.sampler import BatchSampler, PromptRows, Row
from kbtrain.llm.sampler.shared_prefix import CopiedPrefixDecoder, SharedPrefixDecoder
from kbtrain.llm.sampler.shared_prefix_check import prefix_problem
from kbtrain.models.load import load_model
from kbtrain.records import GREEDY, Sample
from kbtrain.serve.body import read_object
from kbtrain.serve.cors import Header
from kbtrain.serve.exchange import Upload, place_of
from kbtrain.serve.kept_passes import KeptPrefills, RetellingModel
from kbtrain.serve.local_chat import chat_text
from kbtrain.serve.local_request import LocalRequest, check_fields, read_request
from kbtrain.serve.problem import Busy, Refused
from kbtrain.serve.upstream import UpstreamReply
from kbtrain.serve.worker import as_exception

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel

MOST_WAITING = 32
logger = logging.getLogger("kbtrain.serve")


class _Stopped(Exception):
    """Nobody wants the answer any more."""


class _TokenSampler(BatchSampler):
    """Tells of each token as it is drawn; ends an answer at a stop string. ``kept``: passes that are there."""

    told: Callable[[Row], bool]
    kept: KeptPrefills | None = None
    _retold: RetellingModel | None = None

    def _prefill(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[DynamicCache, torch.Tensor]:
        found = None if self.kept is None else self.kept.take(prompts[0])
        if found is None:
            return super()._prefill(prompts, room)
        self._retold = RetellingModel(self.model, found)
        return found.cache, found.logits[0]

    def _step(self, decoder: SharedPrefixDecoder | CopiedPrefixDecoder, newest: torch.Tensor) -> torch.Tensor:
        if self._retold is not None:
            decoder.model = cast("PreTrainedModel", self._retold)
        return super()._step(decoder, newest)

    def after_draw(self, rows: Sequence[Row], logits: torch.Tensor, drawn: Drawn) -> None:
        """As in the base class."""
        (row,) = rows
        if self.told(row):
            row.finish, row.feed = row.finish or "stop", []


@dataclass
class _Job:
    """One answer on its way from the model to the client; ``say`` takes texts, then the sample or an error."""

    request: LocalRequest
    say: Callable[[str | Sample | Exception], None]
    stopped: threading.Event = field(default_factory=threading.Event)


class LocalModel:
    """Implements :class:`~kbtrain.serve.upstream.Upstream`. ``sampler``: of one answer; ``kept``: prompts that a gate
    has been through already.
    """

    takes_tools = False
    paths: Set[str] | None = frozenset({"chat/completions", "completions"})
    kept: KeptPrefills | None = None

    def __init__(self, name: str, dtype: str) -> None:
        self.name = name
        self.model, self.tokenizer = load_model(name, dtype)
        config = self.model.config.get_text_config()
        self.room = int(getattr(config, "max_position_embeddings", None) or 2048)
        shared = prefix_problem(self.model, self.room) is None
        self.sampler = _TokenSampler(self.model, self.tokenizer, Sampling(stop=()), shared)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._waiting = 0
        self._numbers = itertools.count(1)

    async def models(self, headers: Iterable[Header] = ()) -> list[Any]:
        """The model's own name."""
        return [{"id": self.name, "object": "model", "created": 0, "owned_by": "local"}]

    async def close(self) -> None:
        """End the thread; an answer under way is ended at its next token by its request's end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def check(self, path: str, body: Mapping[str, Any]) -> None:
        """As :meth:`kbtrain.serve.upstream.Upstream.check`: fields, messages, and the prompt's length."""
        self._read(path, body)

    @contextlib.asynccontextmanager
    async def send(
        self, path: str, data: bytes | Upload, headers: Iterable[Header], query: bytes = b"", method: str = "POST"
    ) -> AsyncIterator[UpstreamReply]:
        """As :meth:`kbtrain.serve.upstream.Upstream.send`. Raises :class:`Refused` for settings that cannot be met."""
        assert isinstance(data, bytes)  # of its paths' POST; no other path comes here
        request = self._read(path, read_object(data))
        if self._waiting >= MOST_WAITING:
            raise Busy(f"{self._waiting} answers are asked for")
        loop, said = asyncio.get_running_loop(), asyncio.Queue[str | Sample | Exception]()
        job = _Job(request, lambda part: _tell(loop, said, part))
        self._waiting += 1
        future = self._thread.submit(self._run, job)
        future.add_done_callback(lambda _: _call(loop, self._done))
        shape = _Shape(request, self.name, f"kbtrain-{next(self._numbers)}", int(time.time()))
        try:
            if request.stream:
                kind = b"text/event-stream; charset=utf-8"
                yield UpstreamReply(200, [(b"content-type", kind)], _events(shape, said))
            else:
                whole = await _whole(shape, said)
                length = (b"content-length", str(len(whole)).encode())
                yield UpstreamReply(200, [(b"content-type", b"application/json"), length], _once(whole))
        finally:
            job.stopped.set()

    def _done(self) -> None:
        self._waiting -= 1

    def _run(self, job: _Job) -> None:
        if job.stopped.is_set():
            return
        try:
            job.say(self._draw(job))
        except _Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - a library's panic too is this request's, not the thread's end
            logger.error("model: %s\n%s", type(error).__name__, place_of(error))
            job.say(as_exception(error))

    def _draw(self, job: _Job) -> Sample:
        request, said = job.request, ""
        sampler: _TokenSampler = copy.copy(self.sampler)
        sampler.sampling, sampler.kept = request.sampling, self.kept
        held = max((len(one) - 1 for one in request.stop), default=0)

        def told(row: Row) -> bool:
            nonlocal said
            if job.stopped.is_set():
                raise _Stopped
            so_far = sampler.stopper.text(row.tokens, row.opened)
            cut = _cut(so_far, request.stop)
            ended = row.finish is not None or len(cut) < len(so_far)
            ready = cut if ended else cut[: max(0, len(cut) - held)].rstrip("\ufffd")
            if not ended and may_open_thought(so_far):
                return False
            if len(ready) > len(said):
                job.say(ready[len(said) :])
                said = ready
            return len(cut) < len(so_far)

        sampler.told = told
        index = GREEDY if request.greedy else 0
        ((sample,),) = sampler.sample([PromptRows("request", "llm", request.ids, (index,))])
        return sample

    def _read(self, path: str, body: Mapping[str, Any]) -> LocalRequest:
        if body.get("model") not in {None, self.name}:
            raise Refused(404, "model_not_found", f"the model here is '{self.name}'", "model")
        chat = path == "chat/completions"
        check_fields(body, chat)
        ids = self._chat_ids(body["messages"]) if chat else self._plain_ids(body["prompt"])
        return read_request(body, ids, chat, self.room)

    def _chat_ids(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        said = chat_text(self.tokenizer, messages)
        if not self.tokenizer.chat_template:
            return self._plain_ids(said)
        ids: list[int] = self.tokenizer(said, add_special_tokens=False)["input_ids"]
        return ids

    def _plain_ids(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            ids: list[int] = self.tokenizer(prompt)["input_ids"]
            ids = ids[:-1] if ids and ids[-1] == self.tokenizer.eos_token_id else ids
            if not ids:
                raise Refused(400, "body", "field 'prompt': nothing in it", "prompt")
            return ids
        size = self.model.config.get_text_config().vocab_size
        if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < size for i in prompt):
            raise Refused(400, "body", "field 'prompt': expected one text, or token ids of this model", "prompt")
        return list(prompt)


def _cut(so_far: str, stop: Sequence[str]) -> str:
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
        if not self.request.chat:
            return {**choice, "text": words or ""}
        if not stream:
            return {**choice, "message": {"role": "assistant", "content": words}}
        role = {"role": "assistant"} if first else {}
        return {**choice, "delta": {**role, **({} if words is None else {"content": words})}}

    def object(self, choices: list[dict[str, Any]], stream: bool, usage: dict[str, int] | None = None) -> bytes:
        kind = "chat.completion" if self.request.chat else "text_completion"
        chunk = ".chunk" if stream and self.request.chat else ""
        made = {"id": self.id, "object": kind + chunk, "created": self.created, "model": self.model, "choices": choices}
        return json.dumps(made | ({} if usage is None else {"usage": usage}), ensure_ascii=False).encode()

    def event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        return b"data: " + self.object(choices, True, usage) + b"\n\n"

    def usage(self, sample: Sample) -> dict[str, int]:
        asked, said = len(self.request.ids), sample.n_tokens
        return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}


Said = asyncio.Queue["str | Sample | Exception"]


async def _events(shape: _Shape, said: Said) -> AsyncIterator[bytes]:
    """Server-sent events, one a piece of text."""
    first = True
    while True:
        part = await said.get()
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


async def _whole(shape: _Shape, said: Said) -> bytes:
    words = ""
    while True:
        part = await said.get()
        if isinstance(part, Exception):
            raise Refused(502, "model_failed", f"the model failed ({type(part).__name__})")
        if isinstance(part, Sample):
            return shape.object([shape.choice(words, _finish(part), False)], False, shape.usage(part))
        words += part


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _finish(sample: Sample) -> str:
    return "length" if sample.finish == "length" else "stop"


def _tell(loop: asyncio.AbstractEventLoop, said: Said, part: str | Sample | Exception) -> None:
    _call(loop, lambda: said.put_nowait(part))


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
        loop.call_soon_threadsafe(function)
