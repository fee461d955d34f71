"""A server's reply -> samples. Completions and chat differ in where text and log-probabilities stand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError
from kbtrain.records import GREEDY, Finish, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def samples(
    reply: Mapping[str, Any],
    first: int,
    n: int,
    stop: Sequence[str],
    logprobs: bool,
    tokenizer: PreTrainedTokenizerBase | None,
) -> list[Sample]:
    """At most ``n`` samples numbered from ``first``. Raises :class:`UserError` for a reply that tells too little."""
    choices = sorted(reply["choices"], key=lambda choice: int(choice.get("index") or 0))[:n]
    alone = (reply.get("usage") or {}).get("completion_tokens") if len(reply["choices"]) == 1 else None
    made = []
    for i, choice in enumerate(choices):
        found = token_logprobs(choice)
        if logprobs and found is None:
            raise UserError(
                "server: gives no log-probabilities; set server_logprobs: false (0 is stored for them then)"
            )
        text, finish = _text(choice, stop), _finish(choice, stop)
        if found is not None:
            count = len(found)
        elif alone is not None:
            count = int(alone)
        elif tokenizer is not None:
            count = len(tokenizer(text, add_special_tokens=False)["input_ids"]) + (finish != "length")
        else:
            raise UserError("server: does not say how long its answers are; set server_n: false")
        index = GREEDY if first == GREEDY else first + i
        made.append(Sample(index, text, count, finish, math.fsum(found or ())))
    return made


def token_logprobs(choice: Mapping[str, Any]) -> list[float] | None:
    """The chosen tokens' log-probabilities, or None where the server gives none."""
    given = choice.get("logprobs")
    if not isinstance(given, dict):
        return None
    if given.get("token_logprobs") is not None:
        return [float(value) for value in given["token_logprobs"]]
    if given.get("content") is not None:
        return [float(token["logprob"]) for token in given["content"]]
    return None


def _text(choice: Mapping[str, Any], stop: Sequence[str]) -> str:
    """The answer up to the first stop string, should a server leave it in."""
    text = str((choice.get("message") or {}).get("content") or choice.get("text") or "")
    for string in stop:
        text = text.split(string, 1)[0]
    return text


def _finish(choice: Mapping[str, Any], stop: Sequence[str]) -> Finish:
    """vLLM names the stop string that was met; of another server it is only known that the answer ended."""
    if choice.get("finish_reason") == "length":
        return "length"
    if "stop_reason" in choice:
        return "stop" if isinstance(choice["stop_reason"], str) else "eos"
    return "stop" if stop else "eos"
