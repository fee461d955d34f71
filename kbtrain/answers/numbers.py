"""Numbers in English words and Chinese numerals, in both directions."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

NUMERAL = "[零〇一二两兩三四五六七八九十百千万萬亿億]"  # a regular expression's class
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
SCALES = {"billion": 10**9, "million": 10**6, "thousand": 1000}
_HANZI = "零一二三四五六七八九"
LARGEST = 10**12 - 1


def english(n: int) -> list[str]:
    """The words of 0 <= n <= :data:`LARGEST` without "and": 105 -> one hundred five."""
    if n < 20:
        return [_ONES[n]]
    if n < 100:
        return [_TENS[n // 10 - 2], *(english(n % 10) if n % 10 else [])]
    name, size = next((scale for scale in SCALES.items() if n >= scale[1]), ("hundred", 100))
    return [*english(n // size), name, *(english(n % size) if n % size else [])]


def from_english(words: Sequence[str]) -> int | None:
    """The number in English words ("and" allowed), or None: the inverse of :func:`english`."""
    plain = [word for word in words if word != "and"]
    if not plain or words[0] == "and" or words[-1] == "and":
        return None
    total = group = 0
    for word in plain:
        if word in SCALES:
            total, group = total + (group or 1) * SCALES[word], 0
        elif word == "hundred":
            group = (group or 1) * 100
        elif word in number_words():
            group += number_words()[word]
        else:
            return None
    value = total + group
    spelled = english(value) if value <= LARGEST else []
    return value if plain in (spelled, spelled[1:] if spelled[:1] == ["one"] else spelled) else None


@functools.cache
def number_words() -> dict[str, int]:
    """The English words below a hundred that are a number by themselves, with their values."""
    return {**{word: i for i, word in enumerate(_ONES)}, **{word: 20 + 10 * i for i, word in enumerate(_TENS)}}


def is_number_word(word: str) -> bool:
    """True if a word can be part of a number in words ("and" is not counted)."""
    return word in number_words() or word in SCALES or word == "hundred"


def chinese(n: int) -> str:
    """Simplified numerals for 0 <= n < 10^8: 10 -> 十, 105 -> 一百零五, 12000 -> 一万二千."""
    if n >= 10_000:
        remainder = n % 10_000
        return (
            chinese(n // 10_000) + "万" + (("零" if remainder < 1000 else "") + chinese(remainder) if remainder else "")
        )
    digits = f"{n:04d}"
    text = "".join(_HANZI[int(d)] + unit if d != "0" else "零" for d, unit in zip(digits, "千百十 ", strict=True))
    text = re.sub("零+", "零", text.replace(" ", "")).strip("零") or "零"
    return text[1:] if text.startswith("一十") else text


def from_chinese(text: str) -> int | None:
    """The number in simplified Chinese numerals, or None: the inverse of :func:`chinese` (两 counts as 二)."""
    total = group = digit = 0
    for char in text.replace("两", "二"):
        if char in _HANZI:
            digit = _HANZI.index(char)
        elif char == "万":
            total, group, digit = (total + group + digit) * 10_000, 0, 0
        elif char in "十百千":
            group, digit = group + (digit or 1) * {"十": 10, "百": 100, "千": 1000}[char], 0
        else:
            return None
    value = total + group + digit
    return value if text and value < 10**8 and chinese(value) == text.replace("两", "二") else None
