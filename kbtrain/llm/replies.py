"""Read a choice of a chat or completions reply: its text, and the thought that came in a field of its own.

Servers with a reasoning parser put the thought into ``reasoning_content`` or ``reasoning`` (vLLM, SGLang, llama.cpp,
Ollama, OpenRouter), or into parts of the content (Mistral), and then ``content`` may be null. Servers without one leave
the thought in the text. Most of them apply stop strings to the thought, too: it is cut at its first line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kbtrain.answers.thoughts import ReadAnswer, SplitText, read_answer, silence, split_thought
from kbtrain.records import Finish, Sample

_THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # fields of a message


@dataclass(frozen=True)
class Output:
    """A choice's text, "" where its content is null, and its thought, "" where no field has one."""

    text: str
    thought: str


def read_output(choice: Mapping[str, Any]) -> Output:
    """Raises TypeError and KeyError for a choice that does not follow the protocol."""
    message = choice.get("message")
    if message is None:
        return Output(_as_text(choice["text"]), "")
    text = message.get("content") if "role" in message else message["content"]
    if isinstance(text, list) and text:
        return _of_parts(text)
    thoughts = [message[name] for name in _THOUGHTS if isinstance(message.get(name), str)]
    return Output(_as_text(text), next(filter(None, thoughts), ""))


def _of_parts(parts: Sequence[Mapping[str, Any]]) -> Output:
    """Content in parts; those of type "thinking" hold parts themselves, or a text."""
    text = "".join(_as_text(part["text"]) for part in parts if part.get("type") in (None, "text", "output_text"))
    thought = ""
    for part in parts:
        inner = part.get("thinking") if part.get("type") == "thinking" else None
        thought += inner if isinstance(inner, str) else "".join(_as_text(piece.get("text")) for piece in inner or ())
    return Output(text, thought)


def _as_text(value: Any) -> str:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"text {value!r:.40}")
    return value or ""


def read_finish(choice: Mapping[str, Any], stop: Sequence[str]) -> Finish:
    """vLLM names the stop string that was met; of another server it is only known that the output ended."""
    if not isinstance(choice.get("finish_reason"), str | None):
        raise TypeError(f"finish_reason {choice['finish_reason']!r:.40}")
    if choice.get("finish_reason") == "length":
        return "length"
    if "stop_reason" in choice:
        return "stop" if isinstance(choice["stop_reason"], str) else "eos"
    return "stop" if stop else "eos"


@dataclass(frozen=True)
class OutputRules:
    """Rules for reading an output. ``opened``: its prompt has opened a thought, which is in the text; ``split`` takes
    the thought off."""

    stop: Sequence[str] = ()
    opened: bool = False
    split: Callable[[str, bool], SplitText] = split_thought


def read_choice(choice: Mapping[str, Any], how: OutputRules) -> ReadAnswer:
    """The answer of a choice. Raises as :func:`read_output`."""
    output, finish = read_output(choice), read_finish(choice, how.stop)
    split = how.split(output.text, how.opened and not output.thought)
    if split.thought is None and output.thought:
        split = SplitText(output.thought, split.answer)
    return read_answer(split, finish, how.stop)


def is_stopped_early(choice: Mapping[str, Any], how: OutputRules) -> bool:
    """True if a stop string may have ended the output before its answer began: in the thought, or at a blank line."""
    answer = read_choice(choice, how)
    ended_by_itself = "stop_reason" in choice and not isinstance(choice["stop_reason"], str)  # vLLM names what ended it
    return silence(Sample(0, answer.text, 0, answer.finish, 0.0)) in ("empty", "thought_only") and not ended_by_itself


def is_opened_by_prompt(choice: Mapping[str, Any]) -> bool:
    """True if the text ends a thought that it does not begin: the server's template has opened it in the prompt."""
    output = read_output(choice)
    return not output.thought and split_thought(output.text).opened_by_prompt
