"""Forms of a short answer that count as one: accents, initials, "&", numbers, ordinals, units and dates.

:func:`readings` gives the texts by which two answers are compared. "July 4, 1776", "4th of July 1776" and "1776-07-04"
have one reading in common, as have "5km" and "five kilometres", "J. K. Rowling" and "JK Rowling", 十二月 and 12月.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence

from kbtrain.answers.names import either_or, middle_and_last, ordinal, other_number, writings
from kbtrain.answers.quantities import BEFORE_ONE, BEHIND_ONE, MONEY, UNITS
from kbtrain.answers.words import (
    CJK_OR_NUMERAL,
    NUMERAL,
    SCALES,
    any_of,
    english,
    from_chinese,
    is_number_word,
    names_by_word,
    normalise,
    number_at,
    number_words,
    pattern,
    without_articles,
    words,
)
from kbtrain.answers.writing import has_chinese

# Letters that Unicode does not decompose, and apostrophes.
_LETTERS = str.maketrans(
    {
        **dict(zip("øØłŁđĐðÐıħĦŧ", "oOlLdDdDihHt", strict=True)),
        **{"þ": "th", "Þ": "Th", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe"},
        **dict.fromkeys("\u02bb\u02bc\u02be\u02bf\u2018\u2019\u00b4", "'"),
    }
)
_SPELLED = {"ä": "ae", "ö": "oe", "ü": "ue", "ø": "oe", "å": "aa"}  # Müller is Mueller, too
_SPELLED_TABLE = str.maketrans({**_SPELLED, **{a.upper(): b.capitalize() for a, b in _SPELLED.items()}})
_ACCENTS = re.compile("(?<=[A-Za-z\u0370-\u03ff])[\u0300-\u036f]+|(?<=[Ее])\u0308")  # not of и: й is another letter
_POINTS = re.compile("[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0640\u064b-\u0652\u0670]")  # Hebrew, Arabic
_ARABIC = str.maketrans("أإآٱىة", "اااايه")

_INITIALS = re.compile(r"(?<![\w.'])(?:[^\W\d_](?:\.[^\W\d_])+(?!\w)\.?|[^\W\d_]\.(?: ?[^\W\d_]\.)+)")
_CAPITALS = re.compile(r"(?<![\w.'])[A-Z](?: [A-Z]){1,3}(?= [A-Z][a-z])")  # J K Rowling
_SAINT = re.compile(r"\b(St|Mt)\b\.?(?= [A-Z])")
_AND = re.compile(r"(?<=\w)\s*&\s*(?=\w)|(?<=\w) '?n'? (?=\w)")
_INSIDE = re.compile(
    r"(?<=[^\W\d_])['\-‐·](?=\w)|(?<=[^\W\d_])\.(?=[^\W\d_])|(?<=\d)-(?=[^\W\d_])"
)  # Hawai'i, Spider-Man, F-16
_DIGIT = re.compile(r"\d")

_YEAR_FIRST = re.compile(r"(?<![\d\-/.])(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?![\d\-/]|\.\d)")
_YEAR_LAST = re.compile(r"(?<![\d\-/.])(\d{1,2})([-/.])(\d{1,2})\2(\d{4})(?![\d\-/]|\.\d)")
_KOREAN_DATE = re.compile(r"(?<!\d)(\d{4})년\s?(\d{1,2})월\s?(\d{1,2})일")
_YEAR_AND_MONTH = re.compile(r"(?<![\w\-/.])(\d{4})-(0[1-9]|1[0-2])(?![\w\-/]|\.\d)")
_ERAS = ((re.compile(r"\bB\.? ?C\.? ?(?:E\b\.?)?(?!\w)"), "BC"), (re.compile(r"\b(?:A\.D\.|C\.?E\b\.?)(?!\w)"), "AD"))
_SHORT_YEARS = re.compile(r"(?<![\d\-/.])([12]\d)(\d\d)\s?[-/\u2010-\u2015]\s?(1[3-9]|[2-9]\d)(?![\d\-/]|\.\d)")
_STREET = re.compile(r"(?<=[a-z] )(St|Ave|Rd|Blvd)\b\.?(?! [A-Z])")
_PI = re.compile(r"(?<![^\W\d_])π(?![^\W\d_])")
_STREETS = {"St": "Street", "Ave": "Avenue", "Rd": "Road", "Blvd": "Boulevard"}
_FOREIGN_MONTHS, _FULL = names_by_word("months"), names_by_word("abbreviations")
_FOREIGN_DATE = re.compile(
    rf"(?<![\w.])(\d{{1,2}})(?:\.|er|º|°)?\s+(?:de\s+)?({any_of(_FOREIGN_MONTHS)})\b\.?"
    r"(?:(?:\s+del?)?\s+(\d{3,4})\b(?: года?\b| г\.)?)?",
    re.IGNORECASE,
)
_BOTH_YEARS = re.compile(r"\b(?:(?:from|between) )?(\d{3,4}) (?:to|until|till|through|and|bis|à|a) (\d{3,4})\b")
_RANGE = re.compile(r"\b(?:between (\d\d?) and|(?:from )?(\d+) to) (\d+)\b")
_ABBREVIATIONS = re.compile(rf"\b({any_of(_FULL)})\.?\s(?=\d)", re.IGNORECASE)
_NUMBERED = re.compile(r"\b[Nn]o\.? (?=\d)|\b[Nn]umber (?=\d)")
_DECADE_WORD = re.compile(r"(?:the )?\d\d([2-9])0['\u2019]?s")
_MONTHS = "january february march april may june july august september october november december".split()
_MONTH = {name: name for name in _MONTHS} | {name[:3]: name for name in _MONTHS} | {"sept": "september"}
_DAY = re.compile(r"0?([1-9]|[12]\d|3[01])(?:st|nd|rd|th)?")
_YEAR = re.compile(r"\d{3,4}")

_UNITS = {
    name: unit
    for name, unit in UNITS.items()
    if unit not in ("bc", "ad", "degrees", "k", "j", "amp", "cal")
    and (unit not in MONEY or unit in ("dollars", "euros", "pounds"))
    and name[0] not in "$€′"
    and not has_chinese(name)
}
_UNIT = re.compile(rf"(?<=\d)[\s\-]*({any_of(_UNITS)})(?![\w'])", re.IGNORECASE)
_MONEY = re.compile(r"(?:\bUS\s?)?([$€£¥])\s?(\d[\d,.]*\d|\d)((?:\s?(?:thousand|million|billion|trillion)\b)?)", re.I)
_CURRENCIES = {"$": "dollars", "€": "euros", "£": "pounds", "¥": "yen"}
_MIDNIGHT = re.compile(r"(?<=\d)[ T]+00:00(?::00(?:\.0+)?)?(?:Z|\+00:00)?(?!\d)")  # of a date in a table
_WORLD_WAR = re.compile(r"\bWW ?(II?|[12])\b")
_DECADE = re.compile(r"\b(\d+0)'s\b")
_LOOSE = re.compile(r"(?<=\d) (?:percent|dollars|euros|lb|yen)\b")  # signs in the original text; signs are not compared

_ORDINALS = {word: int(value) for word, value in names_by_word("ordinals").items()}
_ROMAN = dict(ii=2, iii=3, vii=7, viii=8, xii=12, xiii=13, xiv=14, xvi=16, xvii=17, xviii=18, xix=19)
_NUMERIC = frozenset({*number_words(), *SCALES, "hundred", *_ORDINALS})
_SPECIAL = frozenset({*_NUMERIC, *_MONTH, *_ROMAN, "war"})
_TIME_BEFORE = frozenset("per a each every one".split())  # "second" that counts time
_NOUN_AND_NUMBER, _DAY_AND_MONTH = pattern("noun_and_number"), pattern("day_and_month")
_FULL_NUMERAL = re.compile(rf"{NUMERAL}+")
_MEASURES = "月日号年岁个人次名座位条只本部种天届世国州米千克公里小时分秒元度章季集支颗所口点楼层级倍万亿"
_YEAR_CHARS = re.compile("[零〇一二三四五六七八九]{3,4}")
_DIGIT_OF = {char: str(i) for i, char in enumerate("零一二三四五六七八九")} | {"〇": "0"}


def unaccented(text: str) -> str:
    """Text without accents (é, ł, ø, ʻ, ё), and without the points of Hebrew and Arabic; other marks are letters."""
    if text.isascii():
        return text
    text = _POINTS.sub("", unicodedata.normalize("NFC", text)).translate(_ARABIC).translate(_LETTERS)
    return unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", text)))


def unify_spelling(text: str) -> str:
    """Text in which everything is spelled in one way that punctuation or capitals decide."""
    if "." in text:
        text = _INITIALS.sub(lambda match: re.sub(r"[. ]", "", match[0]), text)
    text = _CAPITALS.sub(lambda match: match[0].replace(" ", ""), text)
    if "WW" in text:
        text = _WORLD_WAR.sub(lambda match: f"World War {'2' if match[1] in ('II', '2') else '1'}", text)
    if "St" in text or "Mt" in text:
        text = _SAINT.sub(lambda match: "Saint" if match[1] == "St" else "Mount", text)
    text = _PI.sub("pi", _STREET.sub(lambda match: _STREETS[match[1]], text))
    if "&" in text or " n" in text or "'n" in text:
        text = _AND.sub(" and ", text)
    for era, short in _ERAS:
        text = era.sub(short, text)
    if _DIGIT.search(text):
        text = _NUMBERED.sub("number ", text)
        text = _ABBREVIATIONS.sub(lambda match: f"{_FULL[match[1].lower()]} ", text)
        text = _BOTH_YEARS.sub(r"\1 \2", text)
        text = _RANGE.sub(lambda ends: f"{ends[1] or ends[2]} {ends[3]}", text)
        text = _SHORT_YEARS.sub(
            lambda years: f"{years[1]}{years[2]} {years[1]}{years[3]}" if years[3] > years[2] else years[0], text
        )
        text = _FOREIGN_DATE.sub(lambda date: f"{date[1]} {_FOREIGN_MONTHS[date[2].lower()]} {date[3] or ''}", text)
        text = _DAY_AND_MONTH.sub(lambda match: _date(match[1], match[2], "", match[0]), text)  # by 15.10.
        text = _KOREAN_DATE.sub(lambda match: _date(match[3], match[2], match[1], match[0]), text)
        text = _YEAR_FIRST.sub(lambda match: _date(match[4], match[3], match[1], match[0]), text)
        text = _YEAR_LAST.sub(_last_year, text)
        text = _YEAR_AND_MONTH.sub(lambda match: f" {_MONTHS[int(match[2]) - 1]} {match[1]} ", text)
        text = _MIDNIGHT.sub("", text)
        text = _DECADE.sub(r"\1s", text)
        text = _MONEY.sub(lambda match: f" {match[2]}{match[3]} {_CURRENCIES[match[1]]}", text)
        text = _UNIT.sub(lambda match: f" {_UNITS[match[1].lower()]}", text)
    return text


def _date(day: str, month: str, year: str, otherwise: str) -> str:
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return otherwise
    return f" {int(day)} {_MONTHS[int(month) - 1]} {year} "


def _last_year(match: re.Match[str]) -> str:
    """A date with its year last: 7/4/1776 has the month first, 4.7.1776 the day, where both are possible."""
    first, sign, second, year = match.groups()
    day_first = int(first) > 12 or (sign != "/" and int(second) <= 12)
    return _date(first, second, year, match[0]) if day_first else _date(second, first, year, match[0])


def converted(plain: Sequence[str]) -> tuple[str, ...]:
    """Words with numbers and ordinals in digits, Roman numerals behind a name too, and dates as day, month, year."""
    if _SPECIAL.isdisjoint(plain):
        return tuple(plain)
    terms = list(plain)
    if not _NUMERIC.isdisjoint(terms):
        terms = _UNIT.sub(lambda unit: f" {_UNITS[unit[1]]}", " ".join(_with_digits(terms))).replace("/", " ").split()
    if not _ROMAN.keys().isdisjoint(terms):
        terms = [
            str(_ROMAN[word]) if word in _ROMAN and i and terms[i - 1].isalpha() else word
            for i, word in enumerate(terms)
        ]
    if "war" in terms:
        text = re.sub(
            r" (?:(1)st|(2)nd) world war ", lambda war: f" world war {war[1] or war[2]} ", f" {' '.join(terms)} "
        )
        terms = text.replace(" world war i ", " world war 1 ").split()  # as the First World War
    if not _MONTH.keys().isdisjoint(terms):
        terms = _with_dates(terms)
    return tuple(terms)


def _with_digits(terms: list[str]) -> list[str]:
    digits: list[str] = []
    i = 0
    while i < len(terms):
        word = terms[i]
        starts = is_number_word(word) and (word in number_words() or (word == "hundred" and i == 0))
        scaled = _DIGIT.match(word) and i + 1 < len(terms) and terms[i + 1] in SCALES
        if not starts and not scaled:
            digits.append(_ordinal(word, terms, i) or word)
            i += 1
            continue
        end = i + 1
        while end < len(terms) and (is_number_word(terms[end]) or (terms[end] == "and" and end + 1 < len(terms))):
            end += 1
        value, size = number_at(terms[i:end])
        next_word = terms[i + size] if i + size < len(terms) else ""
        if value is None or (word == "one" and size == 1 and _counts_nothing(terms, i)):
            digits.append(word)
            i += 1
        elif (
            next_word in _ORDINALS
            and _ORDINALS[next_word] < 10
            and value.isdigit()
            and int(value) % 10 == 0 < int(value)
        ):
            digits.append(ordinal(int(value) + _ORDINALS[next_word]))  # twenty-first
            i += size + 1
        else:
            digits.append(value)
            i += size
    return digits


def _counts_nothing(terms: Sequence[str], i: int) -> bool:
    previous, following = terms[i - 1] if i else "", terms[i + 1] if i + 1 < len(terms) else ""
    return previous in BEFORE_ONE | {"only"} or following in BEHIND_ONE | {"s"}


def _ordinal(word: str, terms: Sequence[str], i: int) -> str | None:
    value = _ORDINALS.get(word)
    previous = terms[i - 1] if i else ""
    if value is None or (word == "second" and (previous in _TIME_BEFORE or _DIGIT.match(previous))):
        return None
    return ordinal(value)


def _with_dates(terms: list[str]) -> list[str]:
    dated: list[str] = []
    i = 0
    while i < len(terms):
        word, month = terms[i], _MONTH.get(terms[i])
        if month is None:
            dated.append(terms[i])
            i += 1
            continue
        next_word = terms[i + 1] if i + 1 < len(terms) else ""
        behind = [word for word in dated[-3:] if word not in ("the", "of")]
        day = _DAY.fullmatch(behind[-1]) if behind and dated[-1] != "the" else None
        ahead = _DAY.fullmatch(next_word) if day is None else None
        if day is not None:
            while not _DAY.fullmatch(dated[-1]):
                dated.pop()  # of
            dated[-1:] = [day[1], month]
        elif ahead is not None:
            dated += [ahead[1], month]
            i += 1
        if month and terms[i + 1 : i + 2] in (["in"], ["of"]) and _YEAR.fullmatch("".join(terms[i + 2 : i + 3])):
            i += 1
        if day is None and ahead is None:
            dated.append(month if _YEAR.fullmatch("".join(terms[i + 1 : i + 2])) else word)
        i += 1
    return dated


def _chinese_digits(terms: Sequence[str]) -> tuple[str, ...]:
    """Words with Chinese numerals in digits, where they count: 十二月 -> 12月, 一九四九年 -> 1949年; not 一起."""
    digits: list[str] = []
    for i, word in enumerate(terms):
        is_count = len(word) > 1 or len(terms) == 1 or (i + 1 < len(terms) and terms[i + 1] in _MEASURES)
        if not _FULL_NUMERAL.fullmatch(word) or not (is_count or (i and terms[i - 1] == "第")):
            digits.append(word)
        elif _YEAR_CHARS.fullmatch(word):
            digits.append("".join(_DIGIT_OF[char] for char in word))
        else:
            value = from_chinese(word)
            digits.append(word if value is None else str(value))
    return tuple(digits)


@functools.lru_cache(maxsize=1024)
def readings(text: str) -> tuple[str, ...]:
    """The texts by which an answer is compared, the usual one first; each of an answer's with each of a gold one's.

    With and without articles: of "Vitamin A" and "Lin'an" the last word is not an article, and behind them in a
    sentence only the second reading shows it. A Chinese numeral is one word, as one in digits is: 二月 is not in
    十二月. What has another form has the plain one, too.
    """
    plain = words(text, CJK_OR_NUMERAL)
    if not plain:
        return (normalise(text),)
    spelled = words(unify_spelling(unaccented(text)), CJK_OR_NUMERAL)
    usual = converted(spelled)
    rows = [usual]
    if has_chinese(text):
        rows += [_chinese_digits(usual)]
    if (date := _YEAR_FIRST.search(text)) is not None:
        rows += [words(f"{date[1]}年{int(date[3])}月{int(date[4])}日", CJK_OR_NUMERAL)]
    rows += [spelled, plain]
    texts = dict.fromkeys(form for row in dict.fromkeys(rows) for form in (without_articles(row), " ".join(row)))
    return tuple(form for form in texts if form)


def join_word_parts(text: str) -> str | None:
    """Text without hyphens, apostrophes and dots inside of words (Hawai'i, Spider-Man); None if it has none."""
    plain = unaccented(text)
    joined = _INSIDE.sub("", plain)
    return None if joined == plain else joined


_PARENTHESIS = re.compile(r"\s*\([^()]*\)\s*$")
_YEARS = re.compile(r"\s*\([^()]*\d[^()]*\)\s*$")  # The Jungle Book (1894)
_BEFORE = re.compile(
    r"^(?:on|in|at|by|from|for|about|around|approximately|circa|c\.|ca\.|nearly|almost)\s+(?=\S)", re.I
)


def without_year(text: str) -> str:
    return _YEARS.sub("", text)


@functools.lru_cache(maxsize=1024)
def gold_readings(text: str) -> tuple[str, ...]:
    """:func:`readings` of a gold answer, and what else names the same: 50 for 50 %, Mueller for Müller, a person's
    first and last name."""
    forms = list(readings(text))
    forms += [_LOOSE.sub("", form) for form in forms if not re.search(r"percent|dollar|euro|pound", text, re.I)]
    spelled = text.translate(_SPELLED_TABLE)
    if spelled != text:
        forms += readings(spelled)
    if (variant := join_word_parts(text)) is not None:
        forms += readings(variant)
    if decade := _DECADE_WORD.fullmatch(text):
        forms += [f"{english(int(decade[1]) * 10)[0][:-1]}ies", f"{decade[1]}0s"]
    bare = without_year(text)
    for variant in (bare, _BEFORE.sub("", bare), *writings(bare)):
        forms += readings(variant) if variant not in ("", text) else ()
    if month := _MONTH.get(text.lower().rstrip(".")):
        forms += [month, month[:3]]
    forms += [other for form in forms for other in _renumbered(form)]
    return tuple(dict.fromkeys(form for form in forms if form.strip()))


def _renumbered(form: str) -> tuple[str, ...]:
    """Other forms of "symphony number 9": 9th symphony."""
    if not (match := _NOUN_AND_NUMBER.fullmatch(form)):
        return ()
    noun, number = match["noun"] or match["counted"], int(match["number"] or match["nth"])
    return f"{noun} {number}", f"{noun} number {number}", f"{ordinal(number)} {noun}"


@functools.lru_cache(maxsize=1024)
def short_readings(gold: str, question: str) -> frozenset[str]:
    """Readings of a gold answer without what goes without saying: Annapolis for "Annapolis, Maryland"; 128 for "128
    pages" where a question asks how many pages.

    As a whole answer they are right; in a longer one they may be another's.
    """
    shorter = [_PARENTHESIS.sub("", gold), *either_or(gold), *other_number(gold)]
    if (name := middle_and_last(gold)) and re.search(r"\bwho(?:m|se)?\b", question, re.IGNORECASE):
        shorter.append(name)
    place, comma, state = gold.partition(", ")
    if comma and place[:1].isupper() and state[:1].isupper() and not _DIGIT.search(place):
        shorter.append(place)
    (first, _, behind), (head, _, noun) = gold.strip().partition(" "), gold.strip().rpartition(" ")
    for named, rest in ((noun, head), (first, behind)):
        if rest and len(named) > 2 and named.casefold() in words(question) and set(words(rest)) - set(words(question)):
            shorter.append(rest)
    shorter += gold.split(": ", 1) if ": " in gold else []
    if re.fullmatch(r"[A-Z][^\W\d_]+ [A-Z][^\W\d_]+", gold):
        shorter.append(f"{gold[0]}. {behind}")
    return frozenset(form for short in shorter for form in gold_readings(short))


def all_readings(text: str) -> Iterator[str]:
    """Readings of an answer, the likely ones first; those with words joined or umlauts spelled last."""
    yield from readings(text)
    spelled = text.translate(_SPELLED_TABLE)
    if not text.isascii() and spelled != text:
        yield from readings(spelled)
    if (joined := join_word_parts(text)) is not None:
        yield from readings(joined)
