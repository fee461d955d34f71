"""Errors in servers' replies: their text and codes, and whether the prompt, the account or the hour causes them.

Bodies followed here: OpenAI and Azure (``error`` with ``code`` and ``innererror``), vLLM (``object: error``), Mistral
and FastAPI (``detail``), Gemini (a list of errors), llama.cpp, OpenRouter (an ``error`` inside a reply of status 200).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kbtrain.errors import strike, strike_all

RefusalKind = Literal["content_filter", "context_length", "other"]
PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
OF_REQUEST = frozenset({400, 403, 413, 422, 451})  # statuses by which a server refuses what a request holds

_QUOTA_CODES = frozenset({
    "insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "insufficient_balance",
    "insufficient_funds", "insufficient_credits", "payment_required", "arrearage",
})  # fmt: skip
_QUOTA = re.compile(
    r"insufficient[ _](account )?(balance|quota|credits?|funds)|credit balance is too low|billing hard limit"
    r"|requires more credits|out of credits|payment required",
    re.I,
)
_OVER_QUOTA = re.compile(r"exceeded your (current|monthly) (quota|usage limit)|quota (has been |is )?exhausted", re.I)
_WAIT = re.compile(r"\"retryDelay\":\s*\"([\d.]+)s\"|(?:retry|try again) (?:in|after) ([\d.]+) ?s", re.I)
_FILTER_CODES = frozenset({
    "content_filter", "content_policy_violation", "responsibleaipolicyviolation", "data_inspection_failed",
    "moderation_blocked", "safety", "prohibited_content", "sensitive_words_detected", "invalid_prompt",
})  # fmt: skip
_FILTER = re.compile(
    r"content[ _-]?(filter|policy|management policy)|content was (blocked|filtered)|usage polic|responsible ai"
    r"|safety (system|filter|setting)|inappropriate content|prohibited[ _]content|requires moderation"
    r"|flagged (for|as)|moderation",
    re.I,
)
_LENGTH_CODES = frozenset({
    "context_length_exceeded", "exceed_context_size_error", "string_above_max_length", "max_tokens_exceeded",
})  # fmt: skip
_LENGTH = re.compile(
    r"context (length|size|window)|(prompt|input|request|message|text|sequence)s?\b[^.]{0,60}\btoo (long|large)"
    r"|too many (input )?tokens|longer than the (maximum )?model|reduce the length"
    r"|max_tokens must be at least 1, got -|input (length|tokens?)\b.{0,60}exceed|larger than the context",
    re.I,
)
_IMAGE = re.compile(r"image (input|url|content)|not support (image|vision|multimodal)", re.I)


class PromptRefusal(Exception):
    """A server refuses this prompt, and another try would not help. ``str``: kind, and the server's words."""

    def __init__(self, kind: RefusalKind, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


@dataclass(frozen=True)
class ServerError:
    """One error of a server: HTTP status (or the code that stands for it), short message, codes in lower case."""

    status: int
    message: str
    codes: frozenset[str] = frozenset()
    wait: float | None = None  # seconds that the body asks to wait

    @property
    def text(self) -> str:
        """Status and message, as a UserError shows them."""
        return f"status {self.status} ({self.message})"

    @property
    def is_quota(self) -> bool:
        """True where the account has no money or quota left, which no waiting cures."""
        if self.status == 402 or self.codes & _QUOTA_CODES or _QUOTA.search(self.message):
            return True
        return self.wait is None and _OVER_QUOTA.search(self.message) is not None

    @property
    def refusal(self) -> RefusalKind | None:
        """Kind of refusal of the prompt; None where the error is not about the prompt."""
        of_request = self.status in OF_REQUEST
        if self.codes & _FILTER_CODES or (of_request and _FILTER.search(self.message)):
            return "content_filter"
        if self.codes & _LENGTH_CODES or self.status == 413 or (of_request and _LENGTH.search(self.message)):
            return "context_length"
        if _IMAGE.search(self.message):
            return "other"
        return "other" if self.status in {400, 422, 451} else None


def read_error(status: int, text: str) -> ServerError:
    """The error that a reply states; of a reply of status 200 the status is that of its ``error.code``, or 502."""
    body: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        body = strike_all(json.loads(text))  # before it is cut: a part of a key could not be struck
    codes = frozenset(str(code).lower() for code in _codes(body, 0))
    if re.search(r"\"quotaId\":\s*\"\w*PerDay", text):  # Gemini's: a wait of seconds is asked for all the same
        codes |= {"insufficient_quota"}
    if status == 200:
        numbers = [int(code) for code in codes if re.fullmatch(r"[45]\d\d", code)]
        status = numbers[0] if numbers else 502
    waits = _WAIT.search(text)
    wait = float((waits[1] or waits[2]).rstrip(".")) if waits and re.search(r"\d", waits[0]) else None
    return ServerError(status, error_message(strike(text) if body is None else body), codes, wait)


def holds_error(reply: Mapping[str, Any]) -> bool:
    """True for a reply that states an error in place of an answer; an ``error`` of null is not one."""
    return bool(reply.get("error")) or reply.get("object") == "error"


def refused_answer(reply: Mapping[str, Any]) -> str | None:
    """The finish reason of an answer that a content filter removed or cut; None without one."""
    choices = reply.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        reason = choice.get("finish_reason") if isinstance(choice, dict) else None
        if isinstance(reason, str) and reason.lower().startswith("content_filter"):
            return reason
    return None


def failed_answer(reply: Mapping[str, Any]) -> str | None:
    """The error of a choice that its provider broke off (finish reason ``error``); None without one."""
    choices = reply.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and (choice.get("error") or choice.get("finish_reason") == "error"):
            return error_message(choice.get("error") or "finish reason error")
    return None


def error_message(value: Any) -> str:
    """A server's error message in one short line, from its reply's JSON or text; empty where it says nothing."""
    for _ in range(8):
        if isinstance(value, list) and value:
            value = value[0]
        elif isinstance(value, dict):
            inner = next((value[key] for key in ("error", "message", "detail", "msg") if value.get(key)), None)
            if inner is None:
                break
            place = value.get("loc")
            if isinstance(place, list) and place and isinstance(inner, str):
                inner = f"{place[-1]}: {inner}"
            value = inner
        elif isinstance(value, str) and value.startswith("{"):  # JSON inside a message, as Mistral sends it
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                break
        else:
            break
    return " ".join(str(value).split())[:200] if value else ""


def _codes(value: Any, depth: int) -> Iterator[Any]:
    """Values of ``code``, ``type`` and ``status`` in an error, and in the errors and reasons inside it."""
    if depth > 4:
        return
    if isinstance(value, list):
        for item in value[:4]:
            yield from _codes(item, depth + 1)
    elif isinstance(value, dict):
        for key in ("code", "type", "status", "error_type"):
            if isinstance(value.get(key), str | int):
                yield value[key]
        for key in ("error", "innererror", "detail", "message", "metadata"):
            yield from _codes(value.get(key), depth + 1)
