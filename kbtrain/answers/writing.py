"""Writing systems: characters without a glyph, and scripts that put no spaces between words.

Ranges are those of a regular expression's class. They follow Unicode 16: Default_Ignorable_Code_Point for
:data:`IGNORED`, Line_Break=SA for :data:`SOUTHEAST_ASIAN`.
"""

from __future__ import annotations

import re

# Soft hyphen, zero-width characters, direction marks, variation selectors, fillers: they are part of no comparison.
IGNORED = (
    r"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    r"\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_IGNORED = re.compile(f"[{IGNORED}]")


def is_blank(text: str) -> bool:
    """True for a text without a visible character: white space and ignored characters alone."""
    return not without_ignored(text).strip()


def without_ignored(text: str) -> str:
    """A text without the characters that have no glyph of their own."""
    return text if text.isascii() else _IGNORED.sub("", text)
