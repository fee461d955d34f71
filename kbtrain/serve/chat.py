"""The gated part of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kbtrain.answers.writing import is_blank
from kbtrain.gate.gate import Reads
from kbtrain.records import TurnExample, Utterance
from kbtrain.serve.client_tasks import is_client_task
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.problem import Refused
from kbtrain.serve.worker import Input
from kbtrain.utterances.follow_ups import is_follow_up, last_messages
from kbtrain.utterances.kinds import UtteranceKind, input_kind, utterance_kind

TEXTS = {"text", "input_text", "output_text"}  # types of parts that are text, in the dialects there are


@dataclass(frozen=True)
class GatedMessage:
    """``value``: what the gate reads, and ``query`` the user's last message; both None for ``reason``.

    ``kind``: of a message that needs no search. ``dialogue``: of a follow-up that is not gated by its own words alone;
    ``searched``: what is then searched for in place of ``query``.
    """

    value: Input | None
    query: str | None
    reason: str = ""
    kind: UtteranceKind | None = None
    dialogue: tuple[Utterance, ...] = ()
    searched: str | None = None


def gate_input(
    messages: Any, config: ServeConfig, reads: frozenset[Reads], field: str = "messages", before: int = 0
) -> GatedMessage:
    """The last question, or the dialogue for a gate of turns.

    ``field`` of the request holds the messages, all but the first ``before`` of them. Tool messages, images, chats
    without a last word of the user, and requests that a chat window makes for itself pass ungated, with a reason.
    Messages of other roles are passed on. Raises :class:`Refused` for what is not a list of messages.
    """
    checked = _check_messages(messages, config.max_messages, field, before)
    last = checked[-1]
    if last["role"] in {"tool", "function"}:
        return GatedMessage(None, None, "tool-message")
    if all(message["role"] in {"system", "developer"} for message in checked):
        return GatedMessage(None, None, "system-only")
    if last["role"] != "user":
        return GatedMessage(None, None, "no-user-message" if last["role"] == "assistant" else "other-role")
    parts = last.get("content")
    if isinstance(parts, list) and any(part.get("type") not in TEXTS for part in parts):
        return GatedMessage(None, None, "image-or-file")
    query = text(last).strip()
    if is_blank(query):
        return GatedMessage(None, None, "empty-question")
    system = (text(message) for message in checked if message["role"] in {"system", "developer"})
    if is_client_task((query, *system)):
        return GatedMessage(None, None, "client-task")
    if len(query) > config.max_question_chars:
        return GatedMessage(None, None, "long-question")
    reads_question = config.gated == "question" or (config.gated == "auto" and "question" in reads)
    if reads_question and config.context == "last":
        return GatedMessage(query, query, kind=utterance_kind(query) if config.utterance_rules else None)
    turn = _turn(checked)
    kind = input_kind(turn) if config.utterance_rules else None
    if config.context == "last" or kind is not None or not is_follow_up(turn.context):
        return GatedMessage(query if reads_question else turn, query, kind=kind)
    window = last_messages(turn.context, config.window, config.max_question_chars)
    return GatedMessage(window if reads_question else turn, query, dialogue=turn.context, searched=window)


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


def _check_messages(messages: Any, most: int, field: str, before: int) -> list[dict[str, Any]]:
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
