"""Traditional and simplified Chinese characters, which count as one where answers are graded and masked."""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Any

from kbtrain.answers.writing import has_kana
from kbtrain.records import Language

CJK = r"\u3400-\u9fff\uf900-\ufaff"  # ranges of a regular expression's class: Chinese characters
_CJK = re.compile(f"[{CJK}]")


def has_chinese(text: str) -> bool:
    """True if there is a Chinese character in a text."""
    return _CJK.search(text) is not None


def language_of(text: str) -> Language:
    """``zh`` for a text with a Chinese character and no kana (Japanese), as gates take a bare question."""
    return "zh" if has_chinese(text) and not has_kana(text) else "en"


@functools.lru_cache(maxsize=512)  # gold answers and passages are compared more than once
def simplified(text: str) -> str:
    """A text with its Chinese characters simplified; all others stay, and so does their number."""
    return _CJK.sub(lambda match: simplified_character(match[0]), text)


@functools.lru_cache(maxsize=65_536)
def simplified_character(char: str) -> str:
    """A Chinese character in its simplified form; compatibility characters are the usual ones."""
    return str(_simplifier().convert(unicodedata.normalize("NFKC", char)))


@functools.cache
def _simplifier() -> Any:
    """OpenCC; one character at a time, so that no phrase changes the length of a text."""
    from opencc import OpenCC

    return OpenCC("t2s")
