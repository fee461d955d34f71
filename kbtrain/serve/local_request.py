"""Fields of a request that the model in this process can meet; any other that could change its answer is refused.

A server behind the gate gets every field as it came and says itself what it cannot do; here nobody else could say it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kbtrain.llm.base import Sampling
from kbtrain.serve.problem import Refused

DEFAULT_TOKENS = 512
COLDEST = 1e-6  # temperature and mass of top_p: below, logits leave the range of their numbers, or no token is left
READ = {
    "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "seed",
    "stop",
}  # fmt: skip
# about the request and not about its answer
ABOUT = {
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "prediction", "parallel_tool_calls",
}  # fmt: skip
# values that ask for nothing, of fields that clients send with them; null does so everywhere
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,),
    "min_p": (0,), "min_tokens": (0,), "ignore_eos": (False,), "logit_bias": ({},), "logprobs": (False,),
    "top_logprobs": (0,), "echo": (False,), "suffix": ("",), "response_format": ({"type": "text"},),
    "modalities": (["text"],), "reasoning_effort": ("none",), "verbosity": ("medium",), "tools": ([],),
    "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none", "auto"),
}  # fmt: skip


@dataclass(frozen=True)
class LocalRequest:
    """A request that can be answered. ``chat``: as messages; else as plain text."""

    ids: tuple[int, ...]
    sampling: Sampling
    greedy: bool
    stop: tuple[str, ...]
    stream: bool
    usage: bool
    chat: bool


def check_fields(body: Mapping[str, Any], chat: bool) -> None:
    """Raise :class:`Refused` for the first field that would have to change the answer and cannot."""
    met = READ | ABOUT | {"messages" if chat else "prompt"}
    for name, value in body.items():
        if name in met or value is None:
            continue
        neutral = NEUTRAL.get(name, ())
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral):
            leave = f"leave it out or give {json.dumps(neutral[0])}" if neutral else "leave it out"
            raise Refused(400, "unsupported", f"field '{name:.40}': nothing this model can do; {leave}", f"{name:.40}")


def read_request(body: Mapping[str, Any], ids: list[int], chat: bool, room: int) -> LocalRequest:
    """The request behind a prompt of these tokens, which fit into the model's ``room`` with at least one more. Raises
    :class:`Refused` for settings that are none."""
    left = room - len(ids)
    if left < 1:
        message = f"the prompt has {len(ids)} tokens; this model has room for {room - 1}"
        raise Refused(400, "context_length_exceeded", message, "messages" if chat else "prompt")
    temperature = _number(body, "temperature", 1.0, 0, 2)
    options = body.get("stream_options")
    usage = isinstance(options, dict) and options.get("include_usage") is True
    sampling = _sampling(body, temperature or 1.0, left)
    return LocalRequest(tuple(ids), sampling, temperature == 0, _stops(body), bool(body.get("stream")), usage, chat)


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
    given = body.get("stop") or []
    found = [given] if isinstance(given, str) else given
    if (
        not isinstance(found, list)
        or len(found) > 16
        or not all(isinstance(s, str) and 0 < len(s) < 1000 for s in found)
    ):
        raise Refused(400, "body", "field 'stop': expected a text or at most 16 of them", "stop")
    return tuple(found)
