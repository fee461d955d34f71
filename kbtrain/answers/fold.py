"""Text without the differences that do not matter to an answer, and where each folded character came from."""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Any

_PARTS = re.compile(r"[\x00-\x7f]+|[^\x00-\x7f]")  # plain stretches at once, other characters one by one
_MARKS = ("\u0300", "\u036f")  # accents; in other scripts combining marks are letters and stay


def fold(text: str) -> tuple[str, list[int] | range]:
    """(folded, origin): full to half width, case, accents, traditional to simplified Chinese; origin[i] is the place
    in ``text`` of the folded character i."""
    if text.isascii():
        return text.lower(), range(len(text))
    folded: list[str] = []
    origin: list[int] = []
    for part in _PARTS.finditer(text):
        begin, plain = part.start(), part.group()
        made = plain.lower() if plain[0] < "\x80" else _fold(plain)
        folded.append(made)
        origin += range(begin, part.end()) if plain[0] < "\x80" else [begin] * len(made)
    return "".join(folded), origin


def is_mark(char: str) -> bool:
    """Whether a character is an accent on the one before it."""
    return _MARKS[0] <= char <= _MARKS[1]


def is_chinese(char: str) -> bool:
    return "\u3400" <= char <= "\u9fff" or "\uf900" <= char <= "\ufaff"


@functools.lru_cache(maxsize=65_536)
def _fold(char: str) -> str:
    if is_chinese(char):
        return str(_simplifier().convert(unicodedata.normalize("NFKC", char)))
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold())
    return "".join(c for c in plain if not is_mark(c))


@functools.cache
def _simplifier() -> Any:
    """OpenCC; one character at a time, so that no phrase changes the length of a text."""
    from opencc import OpenCC

    return OpenCC("t2s")
