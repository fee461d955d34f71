"""Quantities in answers as typed values: a gold answer of 50 euros is not met by $50, 12 not by 12:30 or 12 million.

A quantity is a value with a unit: a bare number, a share, money, a measure, an era's year or a time of day. Two are
equal if value and unit are. :func:`restate` writes an answer so that only equal quantities have the gold one's word.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import regex

from kbtrain.answers.names import numeral_of
from kbtrain.answers.words import (
    LISTS,
    NUMERAL,
    any_of,
    forms_of,
    from_chinese,
    names_by_word,
    number_at,
    number_words,
    pattern,
    read_data,
)
from kbtrain.answers.writing import CJK, has_chinese, simplified


class _Unit(NamedTuple):
    """What a unit measures: ``size`` in the common unit of ``dimension``, whose zero is at ``zero`` of this unit."""

    dimension: str
    size: Fraction
    zero: Fraction


_ZERO = {("celsius", "k"): "273.15", ("celsius", "f"): "32"}


def _read_units() -> tuple[dict[str, str], dict[str, list[_Unit]], frozenset[str]]:
    """Units by their names, what each measures, and those of money."""
    tables = read_data("units.toml")
    money = tables.pop("money")
    names, measures = dict[str, str](), dict[str, list[_Unit]]()
    for dimension, table in (tables | money).items():
        for unit, (size, more) in table.items():
            measures.setdefault(unit, []).append(
                _Unit(dimension, Fraction(size), Fraction(_ZERO.get((dimension, unit), 0)))
            )
            names |= dict.fromkeys([unit, *filter(None, more.split(", "))], unit) if unit else {}
    return names, measures, frozenset(unit for table in money.values() for unit in table)


UNITS, _MEASURES, MONEY = _read_units()
_OF_NO_MEASURE = ("clock", "season", "ratio", "label")
_MEASURES |= {unit: [_Unit(unit, Fraction(1), Fraction(0))] for unit in _OF_NO_MEASURE}
_MEASURES["lasting"] = [
    _Unit("time", Fraction(1), Fraction(0)),
    _Unit("clock", Fraction(1, 60), Fraction(0)),
]  # 2:01:39
_MEASURES["h"].append(_Unit("clock", Fraction(60), Fraction(0)))  # 20 h
_UNIT_NUMBERS = {unit: number for number, unit in enumerate(_MEASURES)}
_SCALES = {word: int(size) for word, size in names_by_word("scales").items()}
_SHORT_SCALES = frozenset("kmbt")  # 5M is five million, 5 m five metres, $5 m five million
_WORD = any_of({*number_words(), "hundred", "thousand", "million", "billion"})
_DIGITS = "|".join(forms_of("digits"))
_PARTS_OF_ONE = {"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "tenth": 10}
_NUMBER = (
    rf"(?:(?P<count>a|one|two|three|four)[ -]|(?=(?:half|quarter)\sof\s))(?P<of_one>{'|'.join(_PARTS_OF_ONE)})s?\b|"
    rf"(?:(?P<whole>\d+)[ \u00a0-])?(?P<top>\d+)\s?[/\u2044]\s?(?P<bottom>\d+)(?![/\d])"
    rf"|(?P<digits>{_DIGITS})"
    rf"|(?P<words>(?:{_WORD})(?:(?:[ -]|(?:(?<=hundred)|(?<=thousand)|(?<=million)),? and )(?:{_WORD}))*)"
)
_PARTS_OF_DAY = names_by_word("parts_of_day")
_HALF_OF_DAY = rf"\s?(?:(?P<half>[ap])\.?\s?m\b\.?|(?P<part>{any_of(_PARTS_OF_DAY)})(?!\w))"
_HOURS = rf" o['\u2019]clock|\s?(?:{any_of(LISTS['asking']['hours'])})"
_CLOCK = re.compile(
    rf"(?<![\w:.])(?P<hour>\d{{1,2}})(?:[:.](?P<minute>[0-5]\d)(?::[0-5]\d)?)?(?:{_HOURS})?{_HALF_OF_DAY}"
    r"|(?<![\w:.])(?P<hour24>\d{1,2})(?::(?P<minute24>[0-5]\d)(?![\w:])| o['\u2019]clock|(?= ?Uhr\b))(?P<uhr> ?Uhr\b)?"
    r"|(?P<named>\b(?:noon|midday|midnight)\b)",
    re.IGNORECASE,
)
_SEASON, _LASTING, _ABOUT, _SCIENTIFIC, _RATIO = map(pattern, ("season", "lasting", "about", "scientific", "ratio"))
_PROPORTION = re.compile(rf"\b(\d+|{_WORD}) (?:to|in|for every) (\d+|{_WORD})\b", re.IGNORECASE)
_TALL = pattern("tall")
_MONTH_NAMES = any_of(LISTS["months"].keys() | names_by_word("months"))
_LABELLED = re.compile(  # Passage 9, p. 8, 8 March: no counts
    rf"(?<![^\W{CJK}])(?:{any_of(names_by_word('labels'))})\.?\s?(\d+)(?![\w.]\d|\w)"
    rf"|(?<![\w.,])(\d{{1,2}})(?:st|nd|rd|th|\.)?\s(?:of\s|de\s)?(?:{_MONTH_NAMES})\b|\b(?:{_MONTH_NAMES})\s(\d{{1,2}})\b",
    re.IGNORECASE,
)
_MONEY_NAMES = rf"(?:{any_of(name for name, unit in UNITS.items() if unit in MONEY)})"
_FOREIGN_MINUS = r"минус|(?<!al )(?<!lo )(?<!ou )menos|(?<!au )(?<!ou )(?<!du )moins|(?<!o )meno"  # not "at least"
_COPULA = "(?!で(?:す|し|あ)|(?:이|입니)다)"
_QUANTITY = re.compile(
    rf"(?<![\w.,/:\\])(?P<era>(?:AD|A\.D\.)\s)?(?P<lead>{_MONEY_NAMES}\s?)?"
    rf"(?P<sign>(?<![\w)\]])[-+]|\b(?:minus|negative|{_FOREIGN_MINUS})\s)?(?P<money>{_MONEY_NAMES}\s?)?"
    rf"(?:{_NUMBER})(?P<part>\sand\sa\s(?:half|quarter)\b)?"
    rf"(?:(?P<gap>[ \u00a0-]?|\sof\s(?:an?|1)\s)(?P<scale>(?:{any_of(_SCALES)})(?![\w²³]|/\w|\.\w)))?"
    r"(?:(?:[ \u00a0-]?|\sd(?:e\s|['\u2019])|\sof\san?\s|\s(?P<nation>(?-i:[A-Z])\w+)\s)"
    rf"(?P<unit>{any_of(UNITS)}|(?-i:[AJ]))(?!{_COPULA}[\w'²³]|/\w))?"
    rf"(?!{_COPULA}\w|[.,:/]\d)",
    re.IGNORECASE,
)


class Quantity(NamedTuple):
    """A quantity at ``begin:end`` of a text; ``values`` are more than one where its writing is ambiguous (1.000)."""

    begin: int
    end: int
    values: frozenset[Fraction]
    unit: str

    def measured(self) -> dict[str, frozenset[Fraction]]:
        """What it may measure, with the values in common units."""
        units = _MEASURES.get(self.unit, [_Unit(self.unit, Fraction(1), Fraction(0))])
        return {unit.dimension: frozenset((v - unit.zero) * unit.size for v in self.values) for unit in units}

    def word(self) -> str:
        """One word that begins with a digit, another one for each quantity."""
        value = min(self.values)
        return f"{abs(value)}{'minus' * (value < 0)}q{_UNIT_NUMBERS.get(self.unit, 'x')}".replace("/", "over")


_ENDLESS = re.compile(r"[\d.,]{60}|[eE][-+]?\d{4}")  # a model that repeats itself; no number takes long to compute


@functools.lru_cache(maxsize=512)
def quantities(text: str) -> tuple[Quantity, ...]:
    """The quantities of a text (digits are ASCII ones, see :func:`plain_digits`), from left to right."""
    matches, taken = list[Quantity](), bytearray(len(text))
    for form, read in (
        (_SEASON, _season),
        (_LASTING, _lasting),
        (_CLOCK, _clock),
        (_RATIO, _ratio),
        (_TALL, _tall),
        (_LABELLED, _label),
        (_QUANTITY, _plain),
    ):
        for match in form.finditer(text):
            quantity = None if _ENDLESS.search(match[0]) else read(match)
            if quantity and not any(taken[quantity.begin : quantity.end]):
                taken[quantity.begin : quantity.end] = b"\1" * (quantity.end - quantity.begin)
                matches.append(quantity)
    return tuple(_joined(sorted(matches), text))


@functools.lru_cache(maxsize=1024)
def whole_quantity(text: str) -> Quantity | None:
    """The quantity that is a gold answer's whole text ("about 5 km"), or None."""
    plain = _ABOUT.sub("", plain_digits(text).strip().rstrip("."))
    first = quantities(plain)
    return first[0] if len(first) == 1 and first[0][:2] == (0, len(plain)) else None


def restate(answer: str, golds: Sequence[Quantity], question: str) -> str:
    """An answer with each quantity as one word: a gold one's where they are equal, else one that no gold one has."""
    answer, parts, position = plain_digits(answer), list[str](), 0
    if any(gold.unit == "ratio" for gold in golds):
        answer = _PROPORTION.sub(lambda match: f"{_in_digits(match[1])}:{_in_digits(match[2])}", answer)
    if not _ENGLISH.search(question):
        answer = _NUMERALS.sub(lambda match: _VALUES[match[0].lower()], answer)
    for quantity in quantities(answer):
        signed, begin, end = [quantity], quantity.begin, quantity.end
        if _FALLS_BY.search(answer, max(0, begin - _BEFORE), begin) or _BELOW.match(answer, end):
            negated = quantity._replace(values=frozenset(-value for value in quantity.values))
            signed = [negated] if _SIGNED.search(question) else [quantity, negated]
        equal = next((gold for gold in golds if any(is_equal(one, gold, question) for one in signed)), None)
        if equal and equal.unit in MONEY and not quantity.unit and _OF_THINGS.match(answer, end):
            equal = None
        word = equal.word() if equal else f"{quantity.word()}other"
        doubt = f" {_IN_DOUBT}" * bool(equal and _ends_span(answer, quantity, question))
        parts += [answer[position:begin], f"{doubt} {word} "]
        position = end
    return "".join([*parts, answer[position:]])


def _ends_span(answer: str, quantity: Quantity, question: str) -> bool:
    """True for one end of a span (10-12), unless it is of years and the question asks for this end."""
    for first, last in (match.span() for match in _SPAN.finditer(answer)):
        if first <= quantity.begin < last and not quantity.begin <= first < last <= quantity.end:
            return not _YEARS.match(answer, first) or (quantity.begin == first) != bool(_BEGINS.search(question))
    return False


_COUNTED, _SIGNED, _ENGLISH = (  # asks for a count or size; for what may fall; in English
    re.compile(rf"(?<![^\W{CJK}])(?:{any_of(LISTS['asking'][name])})(?![^\W{CJK}])", re.IGNORECASE)
    for name in ("counts", "signed", "english")
)
_FALLS_BY = re.compile(
    rf"\b(?:(?:{any_of(LISTS['falling']['verbs'])})(?: by)?|(?:{any_of(LISTS['falling']['nouns'])})(?: of|:)?)\s*"
    r"(?:about |around |nearly |almost )?$",
    re.IGNORECASE,
)
_IN_DOUBT = "whether"  # before one end of a span (10-12), which states neither
_SPAN, _BEGINS, _HOW_MANY, _ASKED_SCALE = map(pattern, ("span", "begins", "how_many", "asked_scale"))
_YEARS = re.compile(r"[12]\d{3}(?:\W{1,3}| to )[12]\d{3}(?!\d)")
_BEFORE = 80  # characters that are read in front of a quantity
_OF_THINGS = re.compile(r"\s(?!(?:for|and|each|was|were|which|including|plus|only|with|per)\b)[^\W\d_]{3,}")
_BELOW = re.compile(rf"\s*(?:{any_of(LISTS['falling']['behind'])})\b", re.IGNORECASE)
_VALUES = names_by_word("numerals")
_NUMERALS = re.compile(rf"\b(?:{any_of(_VALUES)})\b", re.IGNORECASE)
UNIT_NAMES = re.compile(rf"(?<!\w)(?:{any_of(UNITS)})(?!\w)")


def is_equal(quantity: Quantity, gold: Quantity, question: str) -> bool:
    """True for equal values of like units. A unit may be left out where it is money or a share, or the question names
    it; it may be added to a bare gold number, but a share only where the question asks for one."""
    if _rounds_to(quantity, gold):
        return True
    measured, rounded = quantity.measured(), bool(gold.unit) and quantity.unit not in (gold.unit, "year")
    for what, values in gold.measured().items():
        if any(_are_close(value, other, rounded) for value in values for other in measured.get(what, ())):
            return True
    millions = [10**6] if quantity.unit == "m" and _COUNTED.search(question) else []  # 2.5m downloads
    named = millions + [_SCALES[scale.lower()] for scale in _ASKED_SCALE.findall(question)]  # "How many million": 83.9
    worth = {value * factor for value in quantity.values for factor in (1, *named)}
    if gold.values.isdisjoint(worth):
        return False
    if millions and gold.values.isdisjoint(quantity.values):
        return True
    pair = {quantity.unit, gold.unit}
    if len(pair) == 1:
        return True
    if "" not in pair:  # French francs are francs
        return any(one.endswith(f" {other}") for one in pair for other in pair)
    (unit,) = pair - {""}
    asked = {UNITS[name] for name in UNIT_NAMES.findall(question.lower() + " years" * ("how old" in question.lower()))}
    many = not gold.unit and _HOW_MANY.search(question) is not None
    if unit in MONEY:
        return unit in asked or unit == "won" or not many  # "won 3 times"
    if unit == "bc":  # a table may leave out the era of an early year
        return not gold.unit and max(gold.values) < 1000
    if unit == "label":
        return not gold.unit and _COUNTED.search(question) is None
    if unit in ("clock", "lasting", "ratio", "season"):
        return False
    is_year = not gold.unit and all(1000 <= value <= 2100 for value in gold.values)
    if is_year and re.search(r"\b(?:when|year)\b", question, re.I):
        return False
    if unit == "percent":
        return gold.unit == unit or re.search(r"percent|%|per cent|share|rate\b|proportion", question, re.I) is not None
    return unit in asked or not (gold.unit or asked or many)


def _rounds_to(quantity: Quantity, gold: Quantity) -> bool:
    """True for a measure with two more decimals, or more, that the gold one leaves out: 2.20462 pounds for 2.2."""
    value, other, dimensions = min(quantity.values), min(gold.values), len(_MEASURES.get(gold.unit, ()))
    n = next((n for n in range(1, 7) if (other * 10**n).denominator == 1), 0) if other.denominator > 1 else 0
    alike = quantity.unit == gold.unit not in ("", *_OF_NO_MEASURE) and dimensions > (gold.unit in MONEY)
    return n > 0 and alike and (value * 10 ** (n + 1)).denominator > 1 and round(value, n) == other


def _are_close(value: Fraction, other: Fraction, rounded: bool) -> bool:
    """True for equal values, and for those that rounding in another unit tells apart: 26.2 miles for 42.195 km."""
    return value == other or (rounded and abs(value - other) * 500 <= abs(value))


@functools.lru_cache(maxsize=512)
def plain_digits(text: str) -> str:
    """Digits of any script as ASCII, fractions as 3/4, counts in words (half a dozen) and TeX without its commands."""
    text = _SUBSCRIPT.sub(lambda match: match[1] or match[2], text)
    if not {"\\", "$", "~"}.isdisjoint(text):
        text = _without_tex(text)
    text = text.replace("√", " sqrt ")
    text = _RAISED.sub(lambda match: f"^{unicodedata.normalize('NFKC', match[0])}", text)
    text = _MINUS.sub("-", text)
    text = _SCIENTIFIC.sub(r"\1e\2", text)
    if "^" in text:
        text = _POWER.sub(_power, text)
    for part, form, plain in _REWRITTEN["counts"]:
        text = form.sub(plain, text) if part in text else text
    text = _ROMAN.sub(lambda match: f"{match[1]}{numeral_of(match[2])}", text)
    text = _HOUR_WORD.sub(lambda match: _in_digits(match[0]), _CLOCK_WORDS.sub(_clock_digits, text))
    if text.isascii():
        return text
    text = text.replace("\u066b", ".").replace("\u066c", ",")
    text = "".join(_digit(char, text[i - 1 : i]) for i, char in enumerate(text))
    return _with_digits(simplified(text)) if has_chinese(text) else text


def _power(match: re.Match[str]) -> str:
    exponent = int(match[2])
    if exponent >= 0:
        return str(int(match[1]) ** exponent)
    return f"1e{exponent}" if match[1] == "10" else match[0]


def _clock_digits(match: re.Match[str]) -> str:
    hour, part = int(_in_digits(match["hour"] or match["next"])), (match["part"] or "half").lower()  # halb drei: 2:30
    minutes = 30 if part == "half" else 15
    return f"{hour}:{minutes}" if match["past"] else f"{(hour - 2) % 12 + 1}:{60 - minutes}"


def _in_digits(word: str) -> str:
    return str((number_words() | _VALUES).get(word.lower(), word))


def _with_digits(text: str) -> str:
    """Simplified Chinese text with its numerals in digits, and spaces around them and their units."""
    text = _HAN_SHARE.sub(r"\1%", _HAN_NUMBER.sub(_han_digits, text))
    text = _HAN_SCALE.sub(lambda match: str(_exactly(match[1], _HAN_SCALES[match[2]])), text)
    text = re.sub(r"(?<=\u6708)(\d+)\u53f7", "\\1\u65e5", text)  # a day of the month, in two words
    text = re.sub(rf"(?<=[{CJK}])(?=[\d-]*\d)|(?<=\d)(?=[{CJK}])", " ", text)
    return re.sub(rf"(?<=\d )({_HAN_UNITS})(?=[{CJK}])", r"\1 ", text)


def _han_digits(match: re.Match[str]) -> str:
    numeral = match[0]
    if len(numeral) == 4 and all(char in _HAN_DIGITS for char in numeral):
        return "".join(str(_HAN_DIGITS.index(char) % 10) for char in numeral)  # a year
    value = from_chinese(numeral)
    return numeral if value is None else str(value)


def _exactly(digits: str, factor: int) -> int | float:
    value = Fraction(digits.replace(",", "")) * factor
    return int(value) if value.denominator == 1 else float(value)


def _digit(char: str, before: str) -> str:
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    if "VULGAR FRACTION" in unicodedata.name(char, "") and not char.endswith("\u215f"):
        return (" " if before.isdigit() else "") + unicodedata.normalize("NFKC", char).replace("\u2044", "/")
    return char


_MINUS = re.compile(r"\u2212|(?<!\w)(?<!\d[\s%\u00b0])[\u2012\u2013](?=\d)")
_RAISED = re.compile("(?<=[0-9])\u207b?[\u00b9\u00b2\u00b3\u2070\u2074-\u2079]+")
_POWER = re.compile(r"(?<![\w.^])(\d{1,3})\s?\^\s?[{(]?(-?\d{1,2})[})]?(?![\w^])")
_REWRITTEN = {
    name: [(part, re.compile(form), plain) for part, form, plain in rows]
    for name, rows in read_data("patterns.toml")["rewritten"].items()
}
_ROMAN = re.compile(  # of single letters and behind names it may be a part of the name
    rf"(^|\b[a-z]+[,.;:]?\s|\b(?:{any_of(map(str.capitalize, names_by_word('labels')))})\s)"
    r"((?=[IVX]{2}|[MDCLXVI]{4})M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3}))(?!\w)"
)
_CLOCK_WORDS = re.compile(
    rf"\b(?:a )?(?P<part>half|quarter) (?:(?P<past>past)|to) (?P<hour>\d{{1,2}}|{'|'.join([*number_words()][1:13])})\b"
    rf"|\bhalb (?P<next>\d{{1,2}}|{any_of(_VALUES)})\b",
    re.IGNORECASE,
)
_HOUR_WORD = re.compile(rf"\b(?:{'|'.join([*number_words()][1:13])})(?= o['\u2019]clock)", re.IGNORECASE)
_HAN_DIGITS = "\u96f6\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d\u3007"
_HAN_SCALES = {"\u5343": 10**3, "\u4e07": 10**4, "\u4ebf": 10**8}
_HAN_UNITS = any_of(name for name in UNITS if has_chinese(name))
_HAN_NUMBER = regex.compile(rf"{NUMERAL}{{2,}}|{NUMERAL}(?=(?:{_HAN_UNITS}|[月日号个人次名座位条只本部种岁]))")
_HAN_SCALE = re.compile(r"(\d[\d,]*(?:\.\d+)?)\s?([\u5343\u4e07\u4ebf])")
_HAN_SHARE = re.compile(r"\u767e\u5206\u4e4b(\d+(?:\.\d+)?)")
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]+)\}\s*\{([^{}]+)\}|(\d)\s*(\d))")
_STYLE = re.compile(r"\\(?:boxed|fbox|text\w*|math\w*|operatorname)\s*\{([^{}]*)\}")
_MATHS = re.compile(r"\$\$?(?=\S)([^$\n]{1,80}?)(?<=\S)\$\$?(?!\d)|\\[(\[](.*?)\\[)\]]", re.DOTALL)
_SUBSCRIPT = re.compile(r"(?<=[^\W_])\$?_(?:\{(\d+)\}|(\d))(?:\$(?=\w|\W*$))?")  # H$_2$O


def _without_tex(text: str) -> str:
    text = re.sub(r"\^\{(-?\w{1,3})\}", r"^\1", text)
    text = _STYLE.sub(r"\1", _STYLE.sub(r"\1", text))
    for part, form, plain in _REWRITTEN["tex"]:
        text = form.sub(plain, text) if part in text else text
    text = _FRACTION.sub(lambda match: f"{match[1] or match[3]}/{match[2] or match[4]}", text)
    return _MATHS.sub(lambda match: f" {match[1] or match[2] or ''} ", text)


def _season(match: re.Match[str]) -> Quantity | None:
    first, second = int(match["first"]), match["second"]
    last = int(second) if len(second) == 4 else first // 100 * 100 + int(second)
    if last == first - 99:
        last += 100  # 1999-00
    if last != first + 1:
        return None
    return Quantity(*match.span(), frozenset({Fraction(first)}), "season")


def _lasting(match: re.Match[str]) -> Quantity:
    hours, minutes, seconds, others = (int(group or 0) for group in match.groups())
    return Quantity(*match.span(), frozenset({Fraction((hours * 60 + minutes + others) * 60 + seconds)}), "lasting")


def _clock(match: re.Match[str]) -> Quantity | None:
    if match["named"]:
        minutes = {720} if match["named"].lower() != "midnight" else {0}
    elif match["hour"]:
        hour, part = int(match["hour"]), (match["half"] or _PARTS_OF_DAY[match["part"].lower()])[0].lower()
        late = part == "p" or (part == "n" and 6 <= hour < 12)
        minutes = {(hour % 12 + (12 if late else 0)) * 60 + int(match["minute"] or 0)}
        if hour > 12:
            return None
    else:
        hour, minute = int(match["hour24"]), int(match["minute24"] or 0)
        either = 0 < hour < 12 and match["hour24"][0] != "0" and not match["uhr"]
        minutes = {hour * 60 + minute} | ({(hour + 12) * 60 + minute} if either else set())
    return Quantity(*match.span(), frozenset(map(Fraction, minutes)), "clock")


def _ratio(match: re.Match[str]) -> Quantity | None:
    bottom = int(match[2])
    return Quantity(*match.span(), frozenset({Fraction(int(match[1]), bottom)}), "ratio") if bottom else None


def _label(match: re.Match[str]) -> Quantity:
    digits = next(group for group in (1, 2, 3) if match[group])
    return Quantity(*match.span(digits), frozenset({Fraction(match[digits])}), "label")


def _tall(match: re.Match[str]) -> Quantity:
    return Quantity(*match.span(), frozenset({Fraction(int(match[1]) * 12 + int(match[2]))}), "inch")


def _plain(match: re.Match[str]) -> Quantity | None:
    values = _values(match)
    if not values:
        return None
    begin, end = match.span()
    unit = match["lead"] or match["money"] or match["unit"] or ("ad" if match["era"] else "")
    scale = match["scale"]
    if match["nation"] and UNITS.get(unit.lower()) in MONEY:
        unit = f"{match['nation']} {UNITS[unit.lower()]}"
    money = bool(match["lead"] or match["money"]) or UNITS.get((match["unit"] or "").lower()) in MONEY
    attached = scale and ((not match["gap"] and (scale.isupper() or scale == "k")) or scale in ("B", "M"))
    sign = -1 if match["sign"] and match["sign"].strip() != "+" else 1
    values = frozenset(sign * value for value in values)
    if scale and scale.lower() in _SHORT_SCALES and not (money or attached):
        return Quantity(begin, end, values, UNITS.get(scale.lower(), scale.lower()))  # 5 m is five metres
    if match["words"] and match["words"].lower() == "one" and not (scale or unit):
        return None if _counts_nothing(match) else Quantity(begin, end, values, "")
    if match["part"]:
        values = frozenset(value + sign * Fraction(1, 2 if match["part"].endswith("half") else 4) for value in values)
    factor = _SCALES[scale.lower()] if scale else 1
    return Quantity(
        begin,
        end,
        frozenset(factor * v for v in values),
        UNITS.get(unit.strip().lower(), "amp" if unit == "A" else unit.lower() * (" " in unit.strip())),
    )


# words beside which "one" counts nothing
BEHIND_ONE = frozenset(
    "of can could should must may might would will who that which another day time is was has".split()
)
BEFORE_ONE = frozenset("no any every some this that which each another someone other".split())
_ONE_OF = re.compile(rf"\s+(?:{any_of(BEHIND_ONE)})\b", re.I)
_ANY_ONE = re.compile(rf"\b(?:{any_of(BEFORE_ONE)})\s$", re.I)


def _counts_nothing(match: re.Match[str]) -> bool:
    text, begin = match.string, match.start()
    return bool(_ONE_OF.match(text, match.end()) or _ANY_ONE.search(text, max(0, begin - _BEFORE), begin))


def _values(match: re.Match[str]) -> frozenset[Fraction]:
    if match["top"]:
        bottom = int(match["bottom"])
        return frozenset({int(match["whole"] or 0) + Fraction(int(match["top"]), bottom)} if bottom else ())
    if match["of_one"]:
        count = {"a": 1, **number_words()}[(match["count"] or "a").lower()]
        return frozenset({Fraction(count, _PARTS_OF_ONE[match["of_one"].lower()])})
    if match["words"]:
        run = re.split(r"[ ,-]+", match["words"].lower())
        value, size = number_at(run)
        return frozenset({Fraction(value)} if value is not None and size == len(run) else ())
    digits = re.sub(r"[ '\u2019\u00a0\u202f\u2009]", "", match["digits"])
    if re.match(r"0\d", digits):
        return frozenset()  # 007 and 0044 are names
    if digits.count(",") > 1 or re.fullmatch(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?", digits):
        return frozenset({Fraction(digits.replace(",", ""))})
    if digits.count(".") > 1 or {".", ","} <= {*digits}:
        return frozenset({Fraction(digits.replace(".", "").replace(",", "."))})
    decimal = _shortest(digits.replace(",", "."))
    is_ambiguous = (match["scale"] or "").lower() not in _SHORT_SCALES and re.fullmatch(r"[1-9]\d{0,2}\.\d{3}", digits)
    return frozenset({decimal, decimal * 1000} if is_ambiguous else {decimal})


_NOISE = re.compile(r"(?:0{6}|9{6})\d{0,2}$")


def _shortest(digits: str) -> Fraction:
    """The value of a decimal; of one that a column of floats writes (0.10000000149011612), the short one."""
    size = len(digits.replace(".", "").lstrip("0")) if "." in digits else 0
    if size > 9:
        import numpy as np

        short = str(np.float32(digits))
        if float(np.float32(digits)) == float(digits) and len(short) <= 9:
            return Fraction(short)
    return Fraction(f"{float(digits):.15g}" if size > 15 and _NOISE.search(digits) else digits)


def _joined(found: Sequence[Quantity], text: str) -> list[Quantity]:
    """Measures of two units as one: 6 ft 2 in, 2 hours and 30 minutes, 3 pounds 50."""
    joined: list[Quantity] = []
    for quantity in found:
        before = joined[-1] if joined else None
        if before and re.fullmatch(r",?\s*(?:and\s+)?", text[before.end : quantity.begin]):
            if before.unit == "h" and quantity.unit == "m":
                quantity = quantity._replace(unit="min")
            size = _size_within(before, quantity)
            if size:
                value = min(before.values) + min(quantity.values) * size
                joined[-1] = Quantity(before.begin, quantity.end, frozenset({value}), before.unit)
                continue
        joined.append(quantity)
    return joined


def _size_within(large: Quantity, small: Quantity) -> Fraction | None:
    """What one of the smaller unit is of the larger one; None where they measure different things."""
    if large.unit in MONEY and not small.unit and 10 <= min(small.values) < 100:
        return Fraction(1, 100)
    for one in _MEASURES.get(large.unit, ()):
        for other in _MEASURES.get(small.unit, ()):
            if one.dimension == other.dimension and other.size < one.size and large.unit and small.unit:
                return other.size / one.size
    return None
