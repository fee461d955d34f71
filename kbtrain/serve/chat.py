"""The gated part of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kbtrain.answers.writing import is_blank
from kbtrain.gate_folder import Reads
from kbtrain.records import TurnExample, Utterance
from kbtrain.serve.client_tasks import is_client_task
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.problem import Refused
from kbtrain.serve.worker import Input

TEXTS = {"text", "input_text", "output_text"}  # types of parts that are text, in the dialects there are


@dataclass(frozen=True)
class GateInput:
    """``value``: what the gate reads, and ``query`` what is searched for; both None for ``reason``."""

    value: Input | None
    query: str | None
    reason: str = ""


def gate_input(
    messages: Any, config: ServeConfig, reads: frozenset[Reads], field: str = "messages", before: int = 0
) -> GateInput:
    """The last question, or the dialogue for a gate of turns.

    ``field`` of the request holds the messages, all but the first ``before`` of them. Tool messages, images, chats
    without a last word of the user, and requests that a chat window makes for itself pass ungated, with a reason.
    Messages of other roles are passed on. Raises :class:`Refused` for what is not a list of messages.
    """
    checked = _checked(messages, config.max_messages, field, before)
    last = checked[-1]
    if last["role"] in {"tool", "function"}:
        return GateInput(None, None, "tool-message")
    if all(message["role"] in {"system", "developer"} for message in checked):
        return GateInput(None, None, "system-only")
    if last["role"] != "user":
        return GateInput(None, None, "no-user-message" if last["role"] == "assistant" else "other-role")
    parts = last.get("content")
    if isinstance(parts, list) and any(part.get("type") not in TEXTS for part in parts):
        return GateInput(None, None, "image-or-file")
    query = text(last).strip()
    if is_blank(query):
        return GateInput(None, None, "empty-question")
    system = (text(message) for message in checked if message["role"] in {"system", "developer"})
    if is_client_task((query, *system)):
        return GateInput(None, None, "client-task")
    if len(query) > config.max_question_chars:
        return GateInput(None, None, "long-question")
    if config.gated == "question" or (config.gated == "auto" and "question" in reads):
        return GateInput(query, query)
    return GateInput(_turn(checked), query)


def text(message: dict[str, Any]) -> str:
    """The text of a message, its text parts joined by line ends."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(part["text"] for part in content if isinstance(part.get("text"), str))


def _turn(messages: Sequence[dict[str, Any]]) -> TurnExample:
    """Words of the user and the assistant so far, as the dialogue before the system's next turn."""
    speakers = {"user": "USER", "assistant": "SYSTEM"}
    said = [(speakers[m["role"]], text(m).strip()) for m in messages if m["role"] in speakers]
    context = tuple(Utterance(speaker, words) for speaker, words in said if words)  # type: ignore[arg-type]
    return TurnExample(id="chat", dialogue_id="chat", split="test", turn=len(context), context=context)


def _checked(messages: Any, most: int, field: str, before: int) -> list[dict[str, Any]]:
    def refused(message: str) -> Refused:
        return Refused(400, "messages", f"field '{field}': {message}", field)

    if not isinstance(messages, list) or not messages:
        raise refused("expected a list of messages")
    if len(messages) - before > most:
        raise refused(f"{len(messages) - before} messages; at most {most}")
    for place, message in enumerate(messages, -before):
        where = f"message {place}: " if place >= 0 else ""
        if not isinstance(message, dict):
            raise refused(f"{where}expected an object")
        if not isinstance(message.get("role"), str):
            raise refused(f"{where}field 'role': expected text")
        content = message.get("content")
        if content is not None and not isinstance(content, str | list):
            raise refused(f"{where}field 'content': expected text or a list of parts")
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, dict):
                raise refused(f"{where}field 'content': each part is an object")
            kind = part.get("type")
            if kind is not None and not isinstance(kind, str):
                raise refused(f"{where}field 'content': the type of a part is text")
            if kind in TEXTS and not isinstance(part.get("text"), str):
                raise refused(f"{where}field 'content': a text part has no text")
    return messages
