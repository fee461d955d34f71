"""Replies of a chat or completions endpoint: texts, reasoning, lengths and log-probabilities of their answers.

Servers with a reasoning parser put the reasoning into ``reasoning_content`` or ``reasoning`` (vLLM, SGLang, llama.cpp,
Ollama, OpenRouter), or into parts of the content (Mistral), and then ``content`` may be null. Servers without one leave
the reasoning in the text. Log-probabilities and usage are optional: one that cannot be used counts as missing.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from kbtrain.answers.thoughts import ReadAnswer, SplitText, read_answer, silence, split_thought
from kbtrain.errors import UserError
from kbtrain.net import LARGEST
from kbtrain.records import GREEDY, Finish, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BYTES_A_TOKEN = 4.0
_TEXT_PARTS = (None, "text", "output_text")  # types of parts of a content
# finish reasons of an output that its limit ended
LIMITS = frozenset({"length", "max_tokens", "model_length", "max_output_tokens", "max_new_tokens", "max_length"})
_LOWEST, _HIGHEST = -1e9, 1e-3  # log-probability: rounding may leave one a little above 0


@contextlib.contextmanager
def protocol() -> Iterator[None]:
    """Turn what a reply lacks, or has of another type, into one line."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())[:100]
        raise UserError(f"server: its reply does not follow OpenAI's protocol ({why}); is its URL right?") from None


@dataclass(frozen=True)
class OutputRules:
    """Rules for reading an output. ``opened``: its prompt has opened reasoning, which is in the text; ``split`` strips
    the reasoning."""

    stop: Sequence[str] = ()
    opened: bool = False
    split: Callable[[str, bool], SplitText] = split_thought


class _Part(BaseModel):
    type: str | None = None
    text: str | None = None
    thinking: str | list[_Part] | None = None

    @model_validator(mode="after")
    def _has_text(self) -> _Part:
        if self.type in _TEXT_PARTS and "text" not in self.model_fields_set:
            raise ValueError("a part without text")
        return self

    def thought(self) -> str:
        inner = self.thinking if self.type == "thinking" else None
        return inner if isinstance(inner, str) else "".join(piece.text or "" for piece in inner or ())


class _Message(BaseModel):
    role: Any = None
    content: str | Annotated[list[_Part], Field(min_length=1)] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    thinking: Any = None

    @model_validator(mode="after")
    def _is_one(self) -> _Message:
        if not {"role", "content"} & self.model_fields_set:
            raise ValueError("a message without content")
        return self

    def output(self) -> tuple[str, str]:
        """Its text, and its reasoning, "" where no field has one."""
        if isinstance(self.content, list):
            texts = (part.text or "" for part in self.content if part.type in _TEXT_PARTS)
            return "".join(texts), "".join(part.thought() for part in self.content)
        thoughts = (self.reasoning_content, self.reasoning, self.thinking)
        return self.content or "", next((text for text in thoughts if text and isinstance(text, str)), "")


def _none_if_unusable(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    try:
        return read(value)
    except ValidationError:
        return None


_LogProb = Annotated[float, Field(strict=True, ge=_LOWEST, le=_HIGHEST)]


class _Token(BaseModel):
    logprob: _LogProb


class _LogProbs(BaseModel):
    token_logprobs: list[_LogProb] | None = None  # of completions
    content: list[_Token] | None = None  # of chat


class Choice(BaseModel):
    """One answer of a reply. ``stop_reason``: vLLM names the stop string that was met, or None."""

    model_config = ConfigDict(hide_input_in_errors=True)  # a server may send its caller's key back
    index: Annotated[int, BeforeValidator(lambda index: index or 0)] = 0
    message: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    logprobs: Annotated[_LogProbs | None, WrapValidator(_none_if_unusable)] = None

    @model_validator(mode="after")
    def _has_text(self) -> Choice:
        if self.message is None and "text" not in self.model_fields_set:
            raise ValueError("an answer without text")
        return self

    def output(self) -> tuple[str, str]:
        """Its text, "" where its content is null, and its reasoning, "" where no field has one."""
        return (self.text or "", "") if self.message is None else self.message.output()

    def finish(self, stop: Sequence[str]) -> Finish:
        """What ended it. Of other servers than vLLM it is only known that it ended."""
        if self.finish_reason and self.finish_reason.lower() in LIMITS:
            return "length"
        met = isinstance(self.stop_reason, str) if "stop_reason" in self.model_fields_set else stop
        return "stop" if met else "eos"

    def answer(self, how: OutputRules) -> ReadAnswer:
        """The answer without its reasoning."""
        text, thought = self.output()
        split = how.split(text, how.opened and not thought)
        if split.thought is None and thought:
            split = SplitText(thought, split.answer)
        return read_answer(split, self.finish(how.stop), how.stop)

    def is_stopped_early(self, how: OutputRules) -> bool:
        """True if a stop string may have ended it before its answer began: in the reasoning, or at a blank line."""
        answer = self.answer(how)
        ended_by_itself = "stop_reason" in self.model_fields_set and not isinstance(self.stop_reason, str)
        silent = silence(Sample(0, answer.text, 0, answer.finish, 0.0))
        return silent in ("empty", "thought_only") and not ended_by_itself

    def is_opened_by_prompt(self) -> bool:
        """True if the text ends reasoning that it does not begin: the server's template has opened it in the prompt."""
        text, thought = self.output()
        return not thought and split_thought(text).opened_by_prompt

    def usable_logprobs(self) -> list[float] | None:
        """The chosen tokens' log-probabilities; None where the server gives none, or one that is not a finite number.
        An empty list beside a text counts as none; of reasoning alone it is as some servers give it."""
        if self.logprobs is None:
            return None
        values = self.logprobs.token_logprobs
        if values is None and self.logprobs.content is not None:
            values = [token.logprob for token in self.logprobs.content]
        return None if not values and self.output()[0] else values


def choices_of(reply: Mapping[str, Any]) -> list[Choice]:
    """The answers of a reply by their index. Raises :class:`UserError` for one that does not follow the protocol."""
    with protocol():
        return sorted(map(Choice.model_validate, reply["choices"]), key=lambda choice: choice.index)


def samples(
    reply: Mapping[str, Any], first: int, n: int, how: OutputRules, tokenizer: PreTrainedTokenizerBase | None
) -> list[Sample]:
    """At most ``n`` samples numbered from ``first``; ``logprob`` is 0 where the server gives none that can be used.
    Without log-probabilities and tokenizer the usage's tokens are shared out by the outputs' bytes, reasoning included.
    """
    choices, used = choices_of(reply), token_count(reply, "completion_tokens")
    parts, told = [choice.output() for choice in choices], [choice.usable_logprobs() for choice in choices]
    outputs = [thought + text for text, thought in parts]
    lengths, numbered = _lengths(outputs, used), []
    # beside reasoning in a field of its own, log-probabilities may be of the texts alone
    is_known = all(one is not None or not text for one, (text, _) in zip(told, parts, strict=True))
    rest = used - sum(len(one or ()) for one in told) if used is not None and is_known else 0
    unknown = _lengths([thought for _, thought in parts], rest) if rest > len(choices) else [0] * len(choices)
    for i, choice in enumerate(choices[:n]):
        logprobs, answer = told[i], choice.answer(how)
        if logprobs or (logprobs is not None and not outputs[i]):  # some servers give none for tokens of reasoning
            count = len(logprobs) + unknown[i] * bool(parts[i][1])
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
    lacking = sum(choice.usable_logprobs() is None for choice in choices_of(reply)) if logprobs else 0
    usage = reply.get("usage")
    usable = usage is None or (
        isinstance(usage, Mapping)
        and all(usage.get(key) is None or _is_count(usage[key]) for key in ("prompt_tokens", "completion_tokens"))
    )
    return Counter(logprobs=lacking, usage=not usable)


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


_SOURCES = re.compile(
    r"citations?|annotations|references|sources|search_results|search_info|web_search|executed_tools|(?:\w+_)?grounding\w*"
    r"|num_(?:sources_used|search_queries)|web_search_requests"
)
_CITES = re.compile(
    r"\]\(https?://|【\d+[^】]{0,20}】|<(?:grok|co)[:>]|\ue200cite|\^\[\d+\]|\bsources?: *https?://"
    r"|(?:(?<=\w\w)|(?<=[.,\s]))\[\d{1,2}\](?=\s*(?:$|[\[.,;]))",
    re.IGNORECASE,
)


def has_citations(reply: Mapping[str, Any]) -> bool:
    """True for a reply with sources, in fields or in its text, or with a search in its bill: the model, or its
    provider, has searched."""
    choices = reply.get("choices")
    places = [reply, reply.get("usage"), *(choices if isinstance(choices, list) else ())]
    for _ in _NESTED[:2]:  # a message's own, too
        places += [place.get(name) for place in places if isinstance(place, Mapping) for name in _NESTED]
    texts = [place.get("content") for place in places if isinstance(place, Mapping)]
    parts = [part for text in texts if isinstance(text, list) for part in text if isinstance(part, Mapping)]
    stated = any(
        _SOURCES.fullmatch(str(name)) and _is_filled(value)
        for place in places
        if isinstance(place, Mapping)
        for name, value in place.items()
    )
    cited = any(isinstance(text, str) and _CITES.search(text) for text in (*texts, *(p.get("text") for p in parts)))
    return stated or cited or any(part.get("type") == "reference" for part in parts)


_NESTED = ("message", "server_tool_use", "context", "provider_specific_fields")


def _is_filled(value: Any) -> bool:
    return any(map(_is_filled, value.values())) if isinstance(value, Mapping) else bool(value)


class RepliesSoFar:
    """Signs that a server does not do what it is asked: it reads a part of long prompts, or it searches by itself."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._plain = self._cited = 0
        self._long: deque[tuple[float, int]] = deque(maxlen=_NEWEST)  # our own count of a long prompt, and the server's

    def add_prompt(self, tokens: float, counted: int) -> None:
        """A prompt of at least ``tokens`` tokens by our own count, of which the server has ``counted`` so many. Raises
        :class:`UserError` where it counts far fewer, or the same for all long prompts."""
        if tokens < LONG or counted < LEAST_WINDOW:
            return
        self._long.append((tokens, counted))
        own, counts = zip(*self._long, strict=True)
        most = max(counts)
        fullest = [tokens for tokens, counted in self._long if counted == most]
        longest_other = max((tokens for tokens, counted in self._long if counted < most), default=0.0)
        at_limit = len(fullest) >= _MANY and max(fullest) - max(min(fullest), longest_other) > _SPREAD
        if at_limit or (len(counts) >= _MANY and sum(counts) < _PART * sum(own)):
            raise UserError(
                f"{self.where}: it reads at most {most} tokens of prompts that are longer, so it does not see the "
                "passages; raise its context (Ollama: num_ctx, llama.cpp: --ctx-size), or lower max_prompt_tokens, and "
                "sample into a new run"
            )

    def add_plain(self, reply: Mapping[str, Any]) -> None:
        """A reply to a prompt without passages. Raises :class:`UserError` where too many carry citations."""
        self._plain += 1
        self._cited += has_citations(reply)
        if self._plain >= _MANY and self._cited > _CITED * self._plain:
            raise UserError(f"{self.where}: {SEARCHES}")


SEARCHES = (
    "plain answers carry citations: the model searches by itself, so they do not show what it knows; switch its search "
    "off (server_extra), or take another model"
)
LONG = 150  # tokens by the careful count of bytes: of a prompt with passages
LEAST_WINDOW = 64  # tokens; a smaller count is no window of a server, but one that means nothing
BYTES_A_TOKEN_AT_MOST = 8.0  # more than texts have in any script
_MANY = 10  # prompts or replies from which on they are looked at
_NEWEST = 256  # prompts that are compared
_SPREAD = 2  # tokens between prompts that should not have one count
_PART = 0.6  # of our own count
_CITED = 0.2


def top_logprobs(reply: Mapping[str, Any]) -> list[list[tuple[str, float]]]:
    """The most probable tokens at each place of a reply's first answer, with their log-probabilities, without those of
    probability 0. Raises :class:`UserError` for a reply without any."""
    with protocol():
        stated = reply["choices"][0].get("logprobs")
        stated = stated if isinstance(stated, Mapping) else {}
        tops = stated.get("top_logprobs")
        if stated.get("content") is not None:
            tops = [token.get("top_logprobs") for token in stated["content"]]
        if tops is None or (tops and all(top is None for top in tops)):
            raise UserError(
                "server: gives no top log-probabilities, which this gate reads; `kbtrain check-server` shows what "
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
