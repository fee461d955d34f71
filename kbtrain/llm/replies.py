"""Replies of a chat or completions endpoint: texts, thoughts, lengths and log-probabilities of their answers.

Servers with a reasoning parser put the thought into ``reasoning_content`` or ``reasoning`` (vLLM, SGLang, llama.cpp,
Ollama, OpenRouter), or into parts of the content (Mistral), and then ``content`` may be null. Servers without one leave
the thought in the text. Most of them apply stop strings to the thought, too: it is cut at its first line.

Log-probabilities and usage are optional. One that cannot be used (null, minus infinity, of another type) counts as
missing, and :func:`unusable_parts` counts it.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbtrain.answers.thoughts import ReadAnswer, SplitText, read_answer, silence, split_thought
from kbtrain.errors import UserError
from kbtrain.net import LARGEST
from kbtrain.records import GREEDY, Finish, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # fields of a message
_BYTES_A_TOKEN = 4.0
_HIGHEST = 1e-3  # log-probability: rounding may leave one a little above 0


@contextlib.contextmanager
def protocol() -> Iterator[None]:
    """Turn what a reply lacks, or has of another type, into one line."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())[:100]
        raise UserError(f"server: a reply that does not follow OpenAI's protocol ({why}); is it one?") from None


def read_output(choice: Mapping[str, Any]) -> tuple[str, str]:
    """A choice's text, "" where its content is null, and its thought, "" where no field has one.

    Raises TypeError and KeyError for a choice that does not follow the protocol.
    """
    message = choice.get("message")
    if message is None:
        return _as_text(choice["text"]), ""
    content = message.get("content") if "role" in message else message["content"]
    if isinstance(content, list) and content:
        return _of_parts(content)
    thoughts = (message[name] for name in _THOUGHTS if isinstance(message.get(name), str))
    return _as_text(content), next(filter(None, thoughts), "")


def _of_parts(parts: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Text and thought of content in parts; those of type "thinking" hold parts themselves, or a text."""
    text = "".join(_as_text(part["text"]) for part in parts if part.get("type") in (None, "text", "output_text"))
    thought = ""
    for part in parts:
        inner = part.get("thinking") if part.get("type") == "thinking" else None
        thought += inner if isinstance(inner, str) else "".join(_as_text(piece.get("text")) for piece in inner or ())
    return text, thought


def _as_text(value: Any) -> str:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"text {value!r:.40}")
    return value or ""


def _finish(choice: Mapping[str, Any], stop: Sequence[str]) -> Finish:
    reason = choice.get("finish_reason")
    if not isinstance(reason, str | None):
        raise TypeError(f"finish_reason {reason!r:.40}")
    if reason == "length":
        return "length"
    # vLLM names the stop string that was met; of another server it is only known that the output ended
    met = isinstance(choice["stop_reason"], str) if "stop_reason" in choice else stop
    return "stop" if met else "eos"


@dataclass(frozen=True)
class OutputRules:
    """Rules for reading an output. ``opened``: its prompt has opened a thought, which is in the text; ``split`` takes
    the thought off."""

    stop: Sequence[str] = ()
    opened: bool = False
    split: Callable[[str, bool], SplitText] = split_thought


def read_choice(choice: Mapping[str, Any], how: OutputRules) -> ReadAnswer:
    """The answer of a choice. Raises as :func:`read_output`."""
    text, thought = read_output(choice)
    split = how.split(text, how.opened and not thought)
    if split.thought is None and thought:
        split = SplitText(thought, split.answer)
    return read_answer(split, _finish(choice, how.stop), how.stop)


def is_stopped_early(choice: Mapping[str, Any], how: OutputRules) -> bool:
    """True if a stop string may have ended the output before its answer began: in the thought, or at a blank line."""
    answer = read_choice(choice, how)
    ended_by_itself = "stop_reason" in choice and not isinstance(choice["stop_reason"], str)  # vLLM names what ended it
    return silence(Sample(0, answer.text, 0, answer.finish, 0.0)) in ("empty", "thought_only") and not ended_by_itself


def is_opened_by_prompt(choice: Mapping[str, Any]) -> bool:
    """True if the text ends a thought that it does not begin: the server's template has opened it in the prompt."""
    text, thought = read_output(choice)
    return not thought and split_thought(text).opened_by_prompt


def samples(
    reply: Mapping[str, Any], first: int, n: int, how: OutputRules, tokenizer: PreTrainedTokenizerBase | None
) -> list[Sample]:
    """At most ``n`` samples numbered from ``first``; ``logprob`` is 0 where the server gives none that can be used.

    Without log-probabilities and tokenizer the usage's tokens are shared out by the outputs' bytes, thoughts included.
    Raises :class:`UserError` for a reply that does not follow OpenAI's protocol.
    """
    with protocol():
        choices = sorted(reply["choices"], key=lambda choice: int(choice.get("index") or 0))
        used = token_count(reply, "completion_tokens")
        outputs = [thought + text for text, thought in map(read_output, choices)]
        lengths = _lengths(outputs, used)
        numbered = []
        for i, choice in enumerate(choices[:n]):
            logprobs, answer = usable_logprobs(choice), read_choice(choice, how)
            if logprobs or (logprobs is not None and not outputs[i]):  # some servers give none of a thought's tokens
                count = len(logprobs)
            elif tokenizer is not None and (used is None or len(choices) > 1):
                ids = tokenizer(outputs[i], add_special_tokens=False)["input_ids"]
                count = len(ids) + (answer.finish != "length")
            else:
                count = lengths[i]
            index = GREEDY if first == GREEDY else first + i
            numbered.append(Sample(index, answer.text, count, answer.finish, math.fsum(logprobs or ())))
        return numbered


def unusable_parts(reply: Mapping[str, Any], logprobs: bool) -> Counter[str]:
    """Number of optional parts of a reply that cannot be used: ``logprobs`` of answers, where they are asked for, and
    its ``usage``."""
    with protocol():
        lacking = (usable_logprobs(choice) is None for choice in reply["choices"])
        usage = reply.get("usage")
        usable = usage is None or (
            isinstance(usage, Mapping)
            and all(usage.get(key) is None or _is_count(usage[key]) for key in ("prompt_tokens", "completion_tokens"))
        )
        return Counter(logprobs=sum(lacking) if logprobs else 0, usage=not usable)


def token_count(reply: Mapping[str, Any], key: str) -> int | None:
    """A number of tokens of the reply's usage; None where it has none that can be used."""
    usage = reply.get("usage")
    value = usage.get(key) if isinstance(usage, Mapping) else None
    return int(value) if value is not None and _is_count(value) else None


def _is_count(value: Any) -> bool:
    """True for a number of tokens that a reply can have."""
    return type(value) in (int, float) and 0 <= value <= LARGEST


def _lengths(texts: Sequence[str], used: int | None) -> list[int]:
    """Tokens of each answer of a reply that counts ``used`` in all; without such a count, estimated from its bytes."""
    sizes = [max(1, len(text.encode())) for text in texts]
    total = sum(sizes) / _BYTES_A_TOKEN if used is None else used
    return [round(total)] if len(sizes) == 1 else [max(1, round(total * size / sum(sizes))) for size in sizes]


def usable_logprobs(choice: Mapping[str, Any]) -> list[float] | None:
    """The chosen tokens' log-probabilities; None where the server gives none, or one that is not a finite number.

    An empty list beside a text counts as none; of an output that is a thought alone it is as some servers give it.
    """
    stated = choice.get("logprobs")
    if not isinstance(stated, Mapping):
        return None
    values, tokens = stated.get("token_logprobs"), stated.get("content")
    if values is None and isinstance(tokens, list):
        values = [token.get("logprob") if isinstance(token, Mapping) else None for token in tokens]
    if not isinstance(values, list) or any(type(value) not in (int, float) for value in values):
        return None
    if not all(-math.inf < value <= _HIGHEST for value in values) or not math.isfinite(sum(values)):
        return None
    return None if not values and read_output(choice)[0] else [float(value) for value in values]


def top_logprobs(reply: Mapping[str, Any]) -> list[list[tuple[str, float]]]:
    """The most probable tokens at each place of a reply's first answer, with their log-probabilities.

    Tokens without a number are skipped, and so are those of probability 0. Raises :class:`UserError` for a reply
    without any, or that does not follow OpenAI's protocol.
    """
    with protocol():
        stated = reply["choices"][0].get("logprobs")
        stated = stated if isinstance(stated, Mapping) else {}
        tops = stated.get("top_logprobs")
        if stated.get("content") is not None:
            tops = [token.get("top_logprobs") for token in stated["content"]]
        if tops is None or (tops and all(top is None for top in tops)):
            raise UserError(
                "server: gives no top log-probabilities, from which this gate reads; `kbtrain check-server` shows what "
                "a server gives"
            )
        pairs = [
            top.items() if isinstance(top, Mapping) else [(token["token"], token.get("logprob")) for token in top]
            for top in tops
            if top is not None
        ]
        by_place = [[(str(token), float(value)) for token, value in top if value is not None] for top in pairs]
        if any(math.isnan(value) or value > _HIGHEST for top in by_place for _, value in top):
            raise ValueError("a log-probability above 0 or not a number")
        return [[(token, value) for token, value in top if value > -math.inf] for top in by_place]
