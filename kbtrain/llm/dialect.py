"""A model server: its address, its dialect (names of fields, fields it refuses, header of its key) and its models."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kbtrain.net import Retry, key_headers, reply_json, split_query

LimitName = Literal["max_tokens", "max_completion_tokens"]
KeyHeader = Literal["Authorization", "api-key", "x-api-key"]

_CONTEXT = ("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx")
# These servers fill in a model's or their own filters; answers must be drawn by the settings of the run alone.
NEUTRAL: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0},
    "llamacpp": {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0},
    "sglang": {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
}


class Dialect(BaseModel):
    """Fields that a server takes. ``limit`` is its name for an answer's length. ``greedy`` False: it refuses
    temperature 0. ``most`` bounds the answers of one request. ``extra`` goes into each; null takes a field out."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    limit: LimitName = "max_tokens"
    greedy: bool = True
    most: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = True
    extra: dict[str, Any] = {}
    key_header: KeyHeader = "Authorization"

    def write(self, body: Mapping[str, Any], neutral: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Fields of a request in this dialect. ``neutral`` gives defaults; a field that is None is skipped."""
        named = {self.limit if key == "max_tokens" else key: value for key, value in body.items()}
        whole = {**(neutral or {}), **named, **self.extra}
        return {key: value for key, value in whole.items() if value is not None}


@dataclass(frozen=True)
class Server:
    """Address of a model server, and how it is asked. ``neutral``: see :data:`NEUTRAL`."""

    url: str
    model: str
    chat: bool = False
    asked_at_once: int | None = None  # requests; None: by the kind of server
    kind: str = "unknown"
    opened: bool = False  # its template opens reasoning in the prompt: a text without the closing mark is reasoning
    alias: bool = False  # ``model`` is the server's name for the very model whose tokenizer cuts the prompts
    timeout: float = 600.0
    key_env: str = "OPENAI_API_KEY"
    dialect: Dialect = field(default_factory=lambda: Dialect())
    neutral: Mapping[str, Any] = field(default_factory=dict)
    retry: Retry = field(default_factory=Retry)

    @property
    def concurrency(self) -> int:
        """Requests under way: vLLM queues what it does not compute yet, others may refuse many."""
        return self.asked_at_once or (128 if self.kind == "vllm" else 32)

    @property
    def path(self) -> str:
        return "chat/completions" if self.chat else "completions"

    @property
    def holds(self) -> str:
        """Field of a reply without which it is none."""
        return "choices"

    @property
    def base(self) -> str:
        return split_query(self.url)[0]

    @property
    def query(self) -> dict[str, str]:
        """The address's query, which every request carries."""
        return split_query(self.url)[1]

    def within(self, seconds: float) -> Server:
        """The server for a client that waits: a failed request is tried once more at once, each for ``seconds``."""
        soon = Retry(tries=2, first=0.05, longest=0.05, patience=0.0)
        return replace(self, retry=soon, timeout=min(self.timeout, seconds))

    def headers(self) -> dict[str, str]:
        """The key's header; none without a key in the environment."""
        return key_headers(self.key_env, self.dialect.key_header)


def parts_of(indices: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """First index and number of each request that draws these answers, at most ``most`` neighbours in one."""
    for _, neighbours in itertools.groupby(enumerate(indices), lambda pair: pair[1] - pair[0]):
        run = [index for _, index in neighbours]
        yield from ((run[i], len(run[i : i + most])) for i in range(0, len(run), most))


@dataclass(frozen=True)
class ListedModel:
    """One model of a server. ``root``: the files it was loaded from (vLLM); ``context``: its tokens of prompt and
    answer together, where the server states them."""

    name: str
    owner: str = "unknown"
    root: str | None = None
    context: int | None = None


def read_models(text: str) -> list[ListedModel]:
    """The models of a reply to GET /models: OpenAI's ``data``, a bare list (Together) or Ollama's ``models``; empty
    without a list. Raises ``ValueError`` for text that is not JSON."""
    listed = reply_json(text)
    if isinstance(listed, dict):
        listed = listed.get("data") or listed.get("models")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return [_read_model(row) for row in rows if isinstance(row.get("id") or row.get("name"), str)]


def _read_model(row: Mapping[str, Any]) -> ListedModel:
    meta = row.get("meta")
    stated = {**row, **(meta if isinstance(meta, dict) else {})}
    context = next((stated[key] for key in _CONTEXT if isinstance(stated.get(key), int)), None)
    root = row.get("root")
    return ListedModel(
        name=str(row.get("id") or row.get("name")),
        owner=str(row.get("owned_by") or "unknown"),
        root=root if isinstance(root, str) else None,
        context=context if context is not None and context > 0 else None,
    )


def find_model(name: str, listed: Sequence[ListedModel]) -> ListedModel | None:
    """The listed model that ``name`` means, under the name to ask for; None where the list has none. ``NAME`` is also
    ``models/NAME`` (Gemini) and ``NAME:latest`` (Ollama). ``NAME:variant`` (OpenRouter) and a pattern such as ``*`` or
    ``openai/*`` (LiteLLM) leave the name as it is."""
    exact = [model for model in listed if model.name == name]
    alike = [model for model in listed if bare_name(model.name) == bare_name(name)]
    if exact or alike:
        return (exact or alike)[0]
    base = name.partition(":")[0]
    for model in listed:
        if model.name == base or (is_pattern(model.name) and fnmatch.fnmatchcase(name, model.name)):
            return replace(model, name=name)
    return None


def is_pattern(name: str) -> bool:
    """True for a name that stands for many models."""
    return "*" in name


def bare_name(name: str) -> str:
    return re.sub(r":latest$", "", name.removeprefix("models/"))
