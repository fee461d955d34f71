"""The gated part of a chat, and requests that a chat window makes for itself: titles, tags, follow-ups, queries.

The latter are instructions about a chat. Their rules follow the prompts of Open WebUI (``config.py``,
``DEFAULT_*_PROMPT_TEMPLATE``), LibreChat (``title.ts`` of ``@librechat/agents``), NextChat, LobeChat, Cherry Studio and
Chatbox. Each rule needs two signals or a whole phrase: a user's own wish for a title passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kbtrain.answers.writing import is_blank
from kbtrain.gate.gate import Reads
from kbtrain.records import TurnExample, Utterance
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.problem import Refused
from kbtrain.serve.worker import Input
from kbtrain.utterances import UtteranceKind, input_kind, is_follow_up, last_messages, utterance_kind

MOST_MESSAGES = 1000  # of a chat
TEXTS = {"text", "input_text", "output_text"}  # types of text parts in all forms of requests


@dataclass(frozen=True)
class GatedMessage:
    """``value``: the gate's input, and ``query`` the user's last message; both None for ``reason``.

    ``kind``: of a message that needs no search. ``dialogue``: of a follow-up that is not gated by its own words alone;
    ``searched``: the query that then takes the place of ``query``.
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
    whose last message is not the user's, and requests that a chat window makes for itself pass ungated, with a reason.
    Messages of other roles are passed on. Raises :class:`Refused` for anything but a list of messages.
    """
    checked = _check_messages(messages, MOST_MESSAGES, field, before)
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
    turns = [(speakers[m["role"]], text(m).strip()) for m in messages if m["role"] in speakers]
    context = tuple(Utterance(speaker, words) for speaker, words in turns if words)  # type: ignore[arg-type]
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


LONGEST = 4000  # characters at either end of a message that are read: the chat itself is between them


def _all_of(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns)


# every text that a rule matches has one of these: the rules skip most questions
SIGNS = (
    *("chat_history", "autocompletion", "facial expression", "from various models", "correct tool", "future context"),
    *("title", "a name", "标题"),
)
_ABOUT_CHAT = r"\b(?:chat|conversation|discussion|dialogue|session)\b"
_LENGTH = (
    r"\b\d+\s*(?:-|to|–)?\s*\d*[\s-]*(?:words?|characters?)\b|\b(?:four|five|ten)[\w\s-]{0,12}(?:words?|characters?)\b"
)
RULES: tuple[tuple[re.Pattern[str], ...], ...] = (
    _all_of(r"<chat_history>", r"</chat_history>"),  # Open WebUI: every task about the chat
    _all_of(r"^\s*#+ Task:\s+You are an autocompletion system\b"),
    _all_of(r"\breflect the speaker's likely facial expression through a fitting emoji\b"),
    _all_of(r"^\s*You have been provided with a set of responses from various models to the latest user query\b"),
    _all_of(r"^\s*Available Tools:", r"\byour task is to choose and return the correct tool\(s\)"),
    _all_of(r"^\s*Analyze this conversation and provide:", r"\bconcise title in the detected language\b"),  # LibreChat
    _all_of(r"\ba conversation that starts with:?", r"\bgenerate a concise title\b"),
    # an instruction for a title, about a chat, of a stated length, from any window
    _all_of(
        r"\b(?:generate|provide|create|write|give|suggest|produce|summari[sz]e|name)\b[^\n]{0,120}\b(?:title|name)\b",
        _ABOUT_CHAT,
        _LENGTH,
        r"\b(?:only|nothing else|no (?:other|extra|additional|quot|punctuation)|without (?:any|quot|punctuation)|"
        r"using title case|remove enclosing|max\b|or less|within)",
    ),
    _all_of(r"\bsummari[sz]e (?:the|our|this) (?:discussion|conversation)\b", r"\bas a prompt for future context\b"),
    _all_of(
        r"(?:生成|总结|概括|起|取)[^\n]{0,40}标题",
        r"对话|会话|聊天",
        r"\d+\s*(?:个?字|字以内)|[一二两三四五六七八九十]+到?.{0,3}字",
    ),
)


def is_client_task(texts: Iterable[str]) -> bool:
    """True if the system's message or the user's last one is a chat window's own instruction."""
    for text in texts:
        lowered = text.lower()
        if any(sign in lowered for sign in SIGNS):
            ends = text if len(text) <= 2 * LONGEST else f"{text[:LONGEST]}\n{text[-LONGEST:]}"
            if any(all(pattern.search(ends) for pattern in rule) for rule in RULES):
                return True
    return False
