"""Words by which texts are compared: full to half width, case, punctuation, signs, articles; and numbers in English
words and Chinese numerals, in both directions.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import regex

from kbtrain.answers.writing import CJK, UNIT, without_ignored


def read_data(name: str) -> dict[str, Any]:
    """A table of this package."""
    return tomllib.loads(importlib.resources.files("kbtrain.answers").joinpath("data", name).read_text("utf-8"))


# Lists of words that answers are read by, by table and name.
LISTS: dict[str, dict[str, frozenset[str]]] = {
    table: {name: frozenset(re.split(r"[,;]\s+", words)) for name, words in rows.items()}
    for table, rows in read_data("words.toml").items()
}


def names_by_word(table: str) -> dict[str, str]:
    """The name of the list that a word is in."""
    return {word: name for name, words in LISTS[table].items() for word in words}


def any_of(words: Iterable[str]) -> str:
    """A regular expression of the words, the longest first."""
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_PATTERNS = read_data("patterns.toml")
_PARTS = _PATTERNS["parts"] | {part: any_of(words) for part, words in LISTS["reach"].items()}


def forms_of(name: str) -> list[str]:
    """The forms that the table of patterns has of one, with their parts; line breaks are none of them."""
    texts = _PATTERNS["patterns"][name]
    for part, form in _PARTS.items():
        texts = [text.replace(f"<{part}>", form) for text in texts]
    return [re.sub(r"\n\s*", "", text) for text in texts]


def pattern(name: str, flags: int = 0) -> re.Pattern[str]:
    """A regular expression of the forms of one pattern."""
    return re.compile("|".join(f"(?:{form})" for form in forms_of(name)), re.IGNORECASE | flags)


def patterns(begin: str) -> dict[str, re.Pattern[str]]:
    """All patterns whose names begin so, by the rest of their names."""
    return {name.removeprefix(begin): pattern(name) for name in _PATTERNS["patterns"] if name.startswith(begin)}


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


def number_at(run: Sequence[str]) -> tuple[str | None, int]:
    """The longest number that a run of words begins with, in digits, and how many words it has."""
    if run[0][0].isdecimal():
        digits, scale = run[0], SCALES.get(run[1], 0) if len(run) > 1 else 0
        try:
            value = float(digits) * scale
        except ValueError:
            return None, 1
        return (str(round(value)), 2) if scale and value == round(value) else (None, 1)
    if len(run) > 1 and run[0] in number_words() and 13 <= number_words()[run[0]] <= 20:
        second_half, size = number_at(run[1:3])  # nineteen eighty-four
        if second_half is not None and 10 <= int(second_half) <= 99 and from_english(run[: size + 1]) is None:
            return f"{number_words()[run[0]]}{second_half}", size + 1
    for size in range(min(len(run), 12), 0, -1):
        value_of = from_english(run[:size])
        if value_of is not None:
            return str(value_of), size
    return None, 1


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
_SIGNS_DROPPED = regex.compile(r"[\p{Sc}\p{Sm}%\u2030]|(?<=\d ?)[*/^](?= ?\d)")
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


def text_key(text: str) -> str:
    """Answers with the same key share a judge's verdict; questions with the same key are one in a file. It is the
    normalised text, then the signs of currencies, shares, limits and sums that normalising drops: "$40" and "<40"
    differ, and so do "1/2" and "1-2"."""
    return " ".join([normalise(text), *_SIGNS_DROPPED.findall(folded(text))])


def without_articles(words: Sequence[str]) -> str:
    """Words in a row. An article is before a word, "a" before no Chinese one: "Vitamin A" and "A型" have none."""
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


def is_empty(answer: str) -> bool:
    """True for a text that has nothing to compare after :func:`normalise`, as "", "...", "," and a zero-width space.

    It holds for answers, gold answers, aliases, questions and passages. A sign may be an answer ("+", "*", "!!!").
    Dots, commas, dashes, quotes, brackets and combining marks without a letter are empty.
    """
    return not any(c in _SIGNIFICANT or (unicodedata.category(c)[0] in "LNS" and c != "`") for c in folded(answer))


_SIGNIFICANT = "!*#%&@/\\"


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
