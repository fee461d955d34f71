"""Words by which texts are compared: full to half width, case, punctuation, signs, articles."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence

import regex

from kbtrain.answers.numbers import NUMERAL
from kbtrain.answers.writing import CJK, UNIT, without_ignored

ARTICLES = frozenset({"a", "an", "the"})
_CJK = regex.compile(rf"([{CJK}]|{UNIT})")
CJK_OR_NUMERAL = regex.compile(rf"({NUMERAL}+|[{CJK}]|{UNIT})")
_SIGN = re.compile(  # C++, C#, A+; blood group O-; -5, but not F-16 or 1990-95
    r"(?<=[^\W\d_])(?:\+{1,2}|#)(?![\w+#])|(?<![^\W_])(?:ab?|b|o)-(?![\w-])|(?<![\w.)\]-])-(?=\d)"
)
_MINUS = re.compile(r"(?<!\d)(?<!\d )\b(?:minus|negative)\s+(?=\d)|负(?=\d)")
_THOUSANDS = re.compile(r"(?<!\d)\d{1,3}(?:[,']\d{3})+(?!\d)")  # 1,000 and 1'000 are 1000; "1990,1991" are two years
_RAISED = re.compile("(?<=[0-9])(?=[\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u00bc-\u00be\u2150-\u215e])")
_DROPPED = re.compile(r"(?<![0-9])\.|\.(?![0-9])|[^a-z0-9.]")  # of plain text in small letters
_DROPPED_ANY = regex.compile(r"(?<!\p{Nd})\.|\.(?!\p{Nd})|[^\p{L}\p{N}\p{M}.]")


def normalise(text: str) -> str:
    """NFKC (full to half width), case folded, punctuation and symbols to spaces, articles dropped, spaces folded.

    Signs that make another answer stay: "C++", "C#", "A+", "-5" ("minus 5" is the same). Chinese characters become
    words of their own, so that "contains" is over characters there; so do runs of katakana and the characters of
    :data:`~kbtrain.answers.writing.UNSPACED` (Korean, Thai ...). A text that would vanish (gold "A", "The The") is
    kept whole: an empty gold answer would match everything, and "the" nearly so. Invisible characters (soft hyphens,
    zero-width spaces) are dropped.
    """
    return without_articles(words(text)) or folded(text).strip()


def without_articles(words: Sequence[str]) -> str:
    """Words in a row. An article stands before a word, "a" before no Chinese one: "Vitamin A" and "A型" have none."""
    if ARTICLES.isdisjoint(words):
        return " ".join(words)
    behind = (*words[1:], "")[: len(words)]
    without = [
        word
        for word, next_word in zip(words, behind, strict=True)
        if word not in ARTICLES or not next_word or (word != "the" and _CJK.match(next_word))
    ]
    return " ".join(words if without == ["the"] else without)


def folded(text: str) -> str:
    """Text without invisible characters, NFKC, case folded."""
    if text.isascii():
        return text.lower()
    text = _RAISED.sub(" ", without_ignored(text))  # "8½" is not 81/2, 10 to the 8th not 108
    return unicodedata.normalize("NFKC", text).casefold().replace("\u2212", "-")


@functools.lru_cache(maxsize=512)  # gold answers and options come back with every answer to their question
def words(text: str, single: regex.Pattern[str] = _CJK) -> tuple[str, ...]:
    """Words that are compared, articles among them; ``single``: what is a word without spaces around it."""
    text = folded(text)
    plain = text.isascii()
    if not plain or "minus" in text or "negative" in text:
        text = _MINUS.sub(" -", text)
    if not plain:
        text = single.sub(r" \1 ", text)
    if "," in text or "'" in text:
        text = _THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    dropped = _DROPPED if plain else _DROPPED_ANY
    parts, position = [], 0
    if "-" in text or "+" in text or "#" in text:
        for sign in _SIGN.finditer(text):
            parts += [dropped.sub(" ", text[position : sign.start()]), sign[0]]
            position = sign.end()
    return tuple("".join([*parts, dropped.sub(" ", text[position:] if position else text)]).split())
