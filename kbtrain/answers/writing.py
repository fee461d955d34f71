"""Writing systems: characters without a glyph, scripts that put no spaces between words, and Chinese characters,
whose traditional and simplified forms count as one where answers are graded and masked.

Ranges are those of a regular expression's class. They follow Unicode 16: Default_Ignorable_Code_Point for
:data:`IGNORED`, Line_Break=SA for :data:`SOUTHEAST_ASIAN`.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Any

import regex

from kbtrain.records import Language

# Soft hyphen, zero-width characters, direction marks, variation selectors, fillers: they are part of no comparison.
IGNORED = (
    r"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    r"\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_IGNORED = re.compile(f"[{IGNORED}]")

KATAKANA = r"\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
HIRAGANA = r"\u3041-\u3096\u3099\u309a\u309d-\u309f"
HANGUL = r"\u1100-\u115e\u1161-\u11ff\ua960-\ua97f\uac00-\ud7a3\ud7b0-\ud7fb"
# Thai, Lao, Burmese, Khmer, Tai Le, New Tai Lue, Tai Tham, Tai Viet, with their combining marks
SOUTHEAST_ASIAN = (
    r"\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ebd\u0ec0-\u0ec6\u0ec8-\u0ece\u0edc-\u0edf\u1000-\u103f\u1050-\u108f"
    r"\u109a-\u109f\u1780-\u17d3\u17d7\u17dc\u17dd\u1950-\u196d\u1970-\u1974\u1980-\u19ab\u19b0-\u19c9\u19de\u19df"
    r"\u1a20-\u1a5e\u1a60-\u1a7c\u1aa0-\u1aad\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaac2\uaadb-\uaadf"
)
# Besides Chinese: scripts without spaces between words, and Korean, which writes particles onto words.
UNSPACED = HIRAGANA + KATAKANA + HANGUL + SOUTHEAST_ASIAN
# One comparable unit of them: a run of katakana, else a character with its combining marks.
UNIT = rf"[{KATAKANA}][{KATAKANA}\u3099\u309a]*|[{UNSPACED}]\p{{M}}*"
_UNSPACED = re.compile(f"[{UNSPACED}]")
_KANA = re.compile(f"[{HIRAGANA}{KATAKANA}]")
_BEYOND_LATIN_AND_CHINESE = regex.compile(rf"[{UNSPACED}{IGNORED}\p{{M}}]")


def has_unspaced(text: str) -> bool:
    """True if a text has a character of :data:`UNSPACED`."""
    return _UNSPACED.search(text) is not None


def has_other_writing(text: str) -> bool:
    """True where the rules for combining marks, ignored characters and :data:`UNSPACED` matter."""
    return not text.isascii() and _BEYOND_LATIN_AND_CHINESE.search(text) is not None


def is_blank(text: str) -> bool:
    """True for a text without a visible character: white space and ignored characters alone.

    Texts that are compared have to have more: see :func:`kbtrain.answers.grading.is_empty`.
    """
    return not without_ignored(text).strip()


def without_ignored(text: str) -> str:
    """A text without the characters that have no glyph of their own."""
    return text if text.isascii() else _IGNORED.sub("", text)


CJK = r"\u3400-\u9fff\uf900-\ufaff"  # ranges of a regular expression's class: Chinese characters
_CJK = re.compile(f"[{CJK}]")


def has_chinese(text: str) -> bool:
    return _CJK.search(text) is not None


def language_of(text: str) -> Language:
    """``zh`` for a text with a Chinese character and no kana (Japanese), as gates take a bare question."""
    return "zh" if has_chinese(text) and not _KANA.search(text) else "en"


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
