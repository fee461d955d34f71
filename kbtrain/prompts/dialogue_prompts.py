"""What a response generator reads, after KETOD's SimpleTOD-plus: context, then what is to be done, knowledge, response.

The markers are plain text: any tokenizer has them, and no embedding must be added and learnt. KETOD adds them as new
tokens, and its actions carry slots and values; here they are the names of the acts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

CONTEXT, ACTION, KNOWLEDGE, RESPONSE = "<|context|>", "<|action|>", "<|knowledge|>", "<|response|>"


def act_text(acts: Sequence[str]) -> str:
    """``<|action|> OFFER, INFORM_COUNT``: what the turn does; "none" where the data set says nothing."""
    return f" {ACTION} {', '.join(acts) or 'none'}"


def snippet_text(title: str, text: str) -> str:
    """``<|knowledge|> Title text``."""
    return f" {KNOWLEDGE} {f'{title} {text}'.strip()}"


def dialogue_fingerprint() -> str:
    """16 hex digits that change with the prompt's text."""
    probe = CONTEXT + act_text(["a", "b"]) + act_text([]) + snippet_text("a", "b") + f" {RESPONSE}"
    return hashlib.sha256(probe.encode()).hexdigest()[:16]
