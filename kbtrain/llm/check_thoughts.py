"""Settings under which a server's model answers without reasoning, or has room for an answer after its reasoning.

Fields that ask a model not to reason are tried first. If none works, a budget of tokens for the reasoning is measured,
and no stop string is sent, since most servers apply those to the reasoning, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kbtrain.answers.thoughts import ReadAnswer, Silence, silence
from kbtrain.llm.outputs import SilentAnswers, beginning
from kbtrain.llm.replies import OutputRules, choices_of
from kbtrain.records import Sample

Ask = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]  # changed fields -> the reply; None: they were refused
NOT_TO_THINK: tuple[Mapping[str, Any], ...] = (
    {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}},  # vLLM, SGLang, llama.cpp
    {"reasoning_effort": "none"},  # OpenAI, Ollama, Mistral
    {"thinking": {"type": "disabled"}},  # DeepSeek, GLM, Kimi, Doubao
    {"enable_thinking": False},  # DashScope, SiliconFlow
    {"reasoning": {"enabled": False}},  # OpenRouter
    {"reasoning_effort": "minimal"},  # OpenAI's older reasoning models
)
ROOM = 1024  # tokens of an output in which reasoning should end
_LEAST_BUDGET = 512
_SPARE = 4  # reasoning about other questions may be longer than the measured one
_TRIES = 3  # a model may end at once, and do otherwise with another seed
LOOKS = 5  # answers of which the share that says nothing is stated


@dataclass(frozen=True)
class CheckedThoughts:
    """``extra``: fields of each request (None takes one out); ``settings``: further keys of a sampling configuration;
    ``silent``: answers under both; ``alike``: a mark or words with which all of them begin."""

    extra: Mapping[str, Any]
    settings: Mapping[str, Any]
    silent: SilentAnswers
    words: str
    alike: str | None = None

    def line(self) -> str:
        """The finding and the share of answers that say nothing, for people."""
        return f"{self.words}; {self.silent.line()}"


def check_thoughts(
    ask: Ask,
    limit: str,
    length: int,
    chat: bool = True,
    context: int | None = None,
    asks: Sequence[Mapping[str, Any]] = ({},) * LOOKS,
) -> CheckedThoughts:
    """Ask with and without stop strings, with and without fields that ask the model not to think. ``ask`` sends a
    question with the stop string of a line's end; ``limit`` names the field that bounds its output of ``length``
    tokens. Reasoning gets half of the server's ``context`` at most. ``asks``: fields of different questions."""
    whole = {"stop": None, limit: ROOM}
    extra: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    words = "the model does not reason before it answers"
    replies = (ask(whole) for _ in range(_TRIES))
    reply = next((r for r in replies if r is None or _is_thinking(r) or _silence(r) is None), None)
    if reply is not None and _is_thinking(reply):
        fields = next((f for f in NOT_TO_THINK if chat and _is_answered(ask({**f, **whole}))), None)
        if fields is not None:
            extra, words = dict(fields), "the model reasons by default; reasoning is turned off"
        else:
            settings = _budget(reply, context)
            words = f"the model reasons before it answers: {settings['max_thought_tokens']} tokens are reserved for it"
    silent = SilentAnswers()
    final = {**extra, limit: length + settings.get("max_thought_tokens", 0), **({"stop": None} if settings else {})}
    opened = bool(settings.get("server_thought_opened"))
    texts = []
    for question in asks:
        answer = ask({**final, **question})
        if answer is not None and "stop" not in final and _silence(answer) is not None:
            unstopped = ask({**final, **question, "stop": None})
            if _is_answered(unstopped):
                answer, extra["stop"], final["stop"] = unstopped, None, None
                words += "; a line's end comes before the answer: stop strings are applied here, not by the server"
        if answer is not None:
            read = _read(answer, opened)
            silent.add([Sample(0, read.text, 0, read.finish, 0.0)])
            texts.append(read.text)
    begin = {beginning(text.strip()) for text in texts}
    if len(set(texts)) == 1 and len(texts) > 1 and asks[0]:
        words += f"; different questions have one answer ({texts[0]!r:.40})"
    alike = f"all answers begin with {begin.pop()!r}: is it reasoning?" if len(begin) == 1 and any(begin) else None
    return CheckedThoughts(extra, settings, silent, words, alike)


def _budget(reply: Mapping[str, Any], context: int | None) -> dict[str, Any]:
    """Keys for a model that cannot be kept from thinking, by the length of one of its outputs."""
    used = (reply.get("usage") or {}).get("completion_tokens")
    answer = _read(reply)
    measured = ROOM if answer.finish == "length" or not isinstance(used, int) else used
    tokens = max(_LEAST_BUDGET, 1 << math.ceil(math.log2(max(1, _SPARE * measured))))  # a power of two
    opened = {"server_thought_opened": True} if choices_of(reply)[0].is_opened_by_prompt() else {}
    most = tokens if context is None else max(1, context // 2)
    return {"max_thought_tokens": min(tokens, most), **opened}


def _read(reply: Mapping[str, Any], opened: bool = False) -> ReadAnswer:
    return choices_of(reply)[0].answer(OutputRules(("\n",), opened))


def _silence(reply: Mapping[str, Any]) -> Silence | None:
    answer = _read(reply)
    return silence(Sample(0, answer.text, 0, answer.finish, 0.0))


def _is_thinking(reply: Mapping[str, Any]) -> bool:
    """True for a reply with reasoning, hidden reasoning included, or without an answer in all its room."""
    details = (reply.get("usage") or {}).get("completion_tokens_details") or {}
    hidden = isinstance(details, Mapping) and bool(details.get("reasoning_tokens"))
    return hidden or _read(reply).thought or _silence(reply) == "cut"


def _is_answered(reply: Mapping[str, Any] | None) -> bool:
    """True for a reply with an answer and without reasoning."""
    return reply is not None and not _is_thinking(reply) and _silence(reply) is None
