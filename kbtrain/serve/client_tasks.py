"""Requests that a chat window makes for itself: titles, tags, follow-ups, queries. They are instructions about a chat.

The rules follow the prompts of Open WebUI (``config.py``, ``DEFAULT_*_PROMPT_TEMPLATE``), LibreChat (``title.ts`` of
``@librechat/agents``), NextChat, LobeChat, Cherry Studio and Chatbox. Each rule needs two signals or a whole phrase: a
user's own wish for a title passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LONGEST = 4000  # characters at either end of a message that are read: the chat itself stands between them


def _all_of(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns)


# one of these stands in every text that a rule matches: most questions are read no further
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
    # an instruction for a title, about a chat, of a stated length: whatever window it comes from
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
    return any(_matches(text) for text in texts)


def _matches(text: str) -> bool:
    lowered = text.lower()
    if not any(sign in lowered for sign in SIGNS):
        return False
    shown = text if len(text) <= 2 * LONGEST else f"{text[:LONGEST]}\n{text[-LONGEST:]}"
    return any(all(pattern.search(shown) for pattern in rule) for rule in RULES)
