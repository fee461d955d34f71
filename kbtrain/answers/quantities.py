"""Quantities in answers as typed values: a gold answer of 50 euros is not met by $50, 12 not by 12:30 or 12 million.

A quantity is a value with a unit: a bare number, a share, money, a measure, an era's year or a time of day. Two are
equal if value and unit are. :func:`restate` writes an answer so that only equal quantities have the gold one's word.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from kbtrain.answers.words import number_at, number_words

_PHYSICAL = {
    "km": "kilometer, kilometers, kilometre, kilometres, kms",
    "m": "meter, meters, metre, metres",
    "cm": "centimeter, centimeters, centimetre, centimetres",
    "mm": "millimeter, millimeters, millimetre, millimetres",
    "mi": "mile, miles",
    "ft": "foot, feet, \u2032",
    "inch": "inches",
    "yd": "yard, yards",
    "kg": "kilogram, kilograms, kilogramme, kilogrammes, kilo, kilos, kgs",
    "g": "gram, grams, gramme, grammes",
    "mg": "milligram, milligrams",
    "lb": "lbs",
    "oz": "ounce, ounces",
    "ton": "tons, tonne, tonnes",
    "l": "liter, liters, litre, litres",
    "ml": "milliliter, milliliters, millilitre, millilitres",
    "h": "hour, hours, hr, hrs",
    "min": "minute, minutes, mins",
    "sec": "second, seconds, secs",  # not "s": 1990s
    "ms": "millisecond, milliseconds",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "years, yr, yrs",
    "c": "°c, ° c, degrees c, degrees celsius, degree celsius, degrees centigrade, celsius, ℃",
    "f": "°f, ° f, degrees f, degrees fahrenheit, degree fahrenheit, fahrenheit, ℉",
    "degrees": "degree, °",
    "km/h": "kmh, kph, kmph, km per hour, kilometers per hour, kilometres per hour, kilometers an hour",
    "mph": "mi/h, miles per hour, miles an hour",
    "m/s": "meters per second, metres per second",
    "km2": "km², km^2, sq km, sq. km, square km, square kilometers, square kilometres",
    "m2": "m², m^2, sq m, square meters, square metres",
    "mi2": "sq mi, square miles",
    "hz": "hertz",
    "khz": "kilohertz",
    "mhz": "megahertz",
    "ghz": "gigahertz",
    "w": "watt, watts",
    "kw": "kilowatt, kilowatts",
    "mw": "megawatt, megawatts",
    "v": "volt, volts",
    "kb": "kilobyte, kilobytes",
    "mb": "megabyte, megabytes",
    "gb": "gigabyte, gigabytes",
    "tb": "terabyte, terabytes",
    "bc": "bce, b.c., b.c.e.",
    "ad": "ce, a.d., c.e.",
}
_MONEY = {
    "dollars": "$, us$, us $, dollar, usd, us dollars, u.s. dollars, american dollars",
    "euros": "€, euro, eur",
    "gbp": "£, pounds sterling, british pounds, quid",
    "pounds": "pound",  # of money or of weight
    "¥": "cn¥",  # yen or yuan
    "yen": "jpy, japanese yen",
    "yuan": "cny, rmb, renminbi, chinese yuan",
    "rupees": "₹, rs., rs, rupee, inr, indian rupees",
    "rubles": "₽, ruble, rouble, roubles, rub",
    "won": "₩, krw, south korean won",
    "pesos": "peso, mxn",
    "reais": "real, brl",
    "liras": "lira, ₺",
    "kroner": "krone, nok, dkk, kr",
    "zlotys": "zloty, zł, pln",
    "rand": "zar, rands",
    "baht": "thb, ฿",
    "francs": "chf, sfr, sfr., franc, swiss francs, swiss franc",
    "aud": "a$, au$, australian dollars",
    "cad": "c$, ca$, canadian dollars",
    "hkd": "hk$, hong kong dollars",
    "sek": "swedish kronor, swedish krona",
    "bitcoins": "btc, bitcoin, ₿",
}
_SHARE = {"percent": "%, pct, pct., per cent, percentage points"}
MONEY = frozenset(_MONEY)
UNITS = {
    name: symbol
    for table in (_PHYSICAL, _MONEY, _SHARE)
    for symbol, names in table.items()
    for name in (symbol, *names.split(", "))
}
_UNIT_NUMBERS = {unit: number for number, unit in enumerate(dict.fromkeys(["", "clock", "season", *UNITS.values()]))}
_ALIKE = (  # units that one sign or word can mean
    {"pounds", "lb"},
    {"pounds", "gbp"},
    {"¥", "yen"},
    {"¥", "yuan"},
    {"degrees", "c"},
    {"degrees", "f"},
    {"", "ad"},
)
_PARTS: dict[tuple[str, str], int | Fraction] = {
    ("ft", "inch"): 12,
    ("h", "min"): 60,
    ("min", "sec"): 60,
    ("lb", "oz"): 16,
    ("pounds", "oz"): 16,
    **{("km", "m"): 1000, ("m", "cm"): 100, ("cm", "mm"): 10, ("m", "mm"): 1000, ("kg", "g"): 1000, ("g", "mg"): 1000},
    **{("ton", "kg"): 1000, ("l", "ml"): 1000, ("sec", "ms"): 1000, ("day", "h"): 24, ("week", "day"): 7},
    ("percent", ""): Fraction(1, 100),
}
_SCALES = {
    **{"k": 10**3, "thousand": 10**3, "thousands": 10**3, "hundred": 10**2, "dozen": 12},
    **{"m": 10**6, "mn": 10**6, "mln": 10**6, "mio": 10**6, "million": 10**6, "millions": 10**6},
    **{"bn": 10**9, "b": 10**9, "billion": 10**9, "billions": 10**9, "mrd": 10**9, "lakh": 10**5},
    **{"tn": 10**12, "t": 10**12, "trillion": 10**12, "trillions": 10**12, "crore": 10**7},
}
_SHORT_SCALES = frozenset("kmbt")  # 5M is five million, 5 m five metres, $5 m five million


def _names(names: Iterable[str]) -> str:
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))


_WORD = "|".join(sorted({*number_words(), "hundred", "thousand", "million", "billion"}, key=len, reverse=True))
_DIGITS = (
    r"\d{1,3}(?:,\d{2})+,\d{3}(?!\d)(?:\.\d+)?"  # 1,00,000
    r"|\d{1,3}(?:[ \u00a0\u202f\u2009]\d{3})+(?!\d)(?:[.,]\d+)?"  # 1 000 000
    r"|\d{1,3}(?:\.\d{3}){2,}(?!\d)(?:,\d+)?"  # 1.000.000
    r"|\d{1,3}(?:[,'\u2019]\d{3})+(?!\d)(?:\.\d+)?"  # 1,000 and 1'000
    r"|\d+[.,]\d+(?:e[+-]?\d+)?|\d+|\.\d+"
)
_PARTS_OF_ONE = {"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "tenth": 10}
_NUMBER = (
    rf"(?P<count>a|one|two|three|four)[ -](?P<of_one>{'|'.join(_PARTS_OF_ONE)})s?\b|"
    rf"(?:(?P<whole>\d+)[ \u00a0-])?(?P<top>\d+)\s?[/\u2044]\s?(?P<bottom>\d+)(?![/\d])"
    rf"|(?P<digits>{_DIGITS})|(?P<words>(?:{_WORD})(?:(?:[ -]|,? and )(?:{_WORD}))*)"
)
_CLOCK = re.compile(
    r"(?<![\w:.])(?P<hour>\d{1,2})(?:[:.](?P<minute>[0-5]\d)(?::[0-5]\d)?)?\s?(?:(?P<half>[ap])\.?\s?m\b\.?)"
    r"|(?<![\w:.])(?P<hour24>\d{1,2})(?::(?P<minute24>[0-5]\d)(?::[0-5]\d)?(?![\w:])| o['\u2019]clock)"
    r"|(?P<named>\b(?:noon|midday|midnight)\b)",
    re.IGNORECASE,
)
_SEASON = re.compile(r"(?<![\w/-])(?P<first>\d{4})\s?[-/\u2010-\u2015]\s?(?P<second>\d{2}|\d{4})(?![\w/-]|\.\d)")
_RATIO = re.compile(r"(?<![\w:.])(\d+):(\d+)(?![\w:]|\.\d)")
_TALL = re.compile(
    r"(?<![\w.])(\d{1,2})\s?(?:['\u2019\u2032]|-?(?:ft|foot|feet)\b\.?[ -]?)\s?(\d{1,2})"
    r"(?:[ -]?in(?:ch(?:es)?)?\b\.?|\"|''|\u2033|\u201d|(?!\w))"
)
_MONEY_NAMES = rf"(?:{_names(name for name, unit in UNITS.items() if unit in MONEY)})"
_QUANTITY = re.compile(
    rf"(?<![\w.,/:\\])(?P<era>(?:AD|A\.D\.)\s)?(?P<lead>{_MONEY_NAMES}\s?)?"
    rf"(?P<sign>(?<![\w)\]])[-+]|\b(?:minus|negative)\s)?(?P<money>{_MONEY_NAMES}\s?)?"
    rf"(?:{_NUMBER})(?P<part>\sand\sa\s(?:half|quarter)\b)?"
    rf"(?:(?P<gap>[ \u00a0-]?)(?P<scale>(?:{_names(_SCALES)})(?![\w²³]|/\w|\.\w)))?"
    rf"(?:[ \u00a0-]?(?P<unit>{_names(UNITS)})(?![\w'²³]|/\w))?"
    r"(?!\w|[.,:/]\d)",
    re.IGNORECASE,
)
_ABOUT = re.compile(
    r"^(?:(?:about|around|approximately|approx\.?|circa|c\.|ca\.|nearly|almost|roughly|some|over|in|on|at|the year|year"
    r"|only|just|exactly)\s+|[~\u2248]\s*)+(?=\S)",
    re.IGNORECASE,
)


class Quantity(NamedTuple):
    """A quantity at ``begin:end`` of a text; ``values`` are more than one where its writing is ambiguous (1.000)."""

    begin: int
    end: int
    values: frozenset[Fraction]
    unit: str

    def word(self) -> str:
        """One word that begins with a digit, another one for each quantity."""
        value = min(self.values)
        return f"{abs(value)}{'minus' * (value < 0)}q{_UNIT_NUMBERS.get(self.unit, 'x')}".replace("/", "over")


def quantities(text: str) -> list[Quantity]:
    """The quantities of a text (digits are ASCII ones, see :func:`plain_digits`), from left to right."""
    matches: list[Quantity] = []
    for pattern, read in ((_SEASON, _season), (_CLOCK, _clock), (_RATIO, _ratio), (_TALL, _tall), (_QUANTITY, _plain)):
        for match in pattern.finditer(text):
            if not any(q.begin < match.end() and match.start() < q.end for q in matches):
                quantity = read(match)
                matches += [quantity] if quantity else []
    return _joined(sorted(matches), text)


@functools.lru_cache(maxsize=1024)
def whole_quantity(text: str) -> Quantity | None:
    """The quantity that is a gold answer's whole text ("about 5 km"), or None."""
    plain = _ABOUT.sub("", plain_digits(text).strip().rstrip("."))
    first = quantities(plain)
    return first[0] if len(first) == 1 and first[0][:2] == (0, len(plain)) else None


def restate(answer: str, golds: Sequence[Quantity], question: str) -> str:
    """An answer with each quantity as one word: a gold one's where they are equal, else one that no gold one has."""
    answer, parts, position = plain_digits(answer), list[str](), 0
    for quantity in quantities(answer):
        equal = next((gold for gold in golds if is_equal(quantity, gold, question)), None)
        word = equal.word() if equal else f"{quantity.word()}other"
        parts += [answer[position : quantity.begin], f" {word} "]
        position = quantity.end
    return "".join([*parts, answer[position:]])


_ASKED_SCALE = re.compile(r"\bhow many (thousand|million|billion|trillion)s?\b", re.I)


def is_equal(quantity: Quantity, gold: Quantity, question: str) -> bool:
    """True for equal values of like units. A unit may be left out where it is money or a share, or the question names
    it; it may be added to a bare gold number, but a share only where the question asks for one."""
    for large, small in ((quantity, gold), (gold, quantity)):  # 2.5 hours are 150 minutes, 25 % are 0.25
        factor = _PARTS.get((large.unit, small.unit))
        if factor and not small.values.isdisjoint(value * factor for value in large.values):
            return True
    named = [_SCALES[scale.lower()] for scale in _ASKED_SCALE.findall(question)]  # "How many million": 83.9
    values = {value * factor for value in quantity.values for factor in (1, *named)}
    if gold.values.isdisjoint(values):
        return False
    pair = {quantity.unit, gold.unit}
    if len(pair) == 1 or pair in _ALIKE:
        return True
    if "" not in pair:
        return False
    (unit,) = pair - {""}
    if unit in MONEY:
        return True
    if unit == "bc":  # a table may leave out the era of an early year
        return not gold.unit and max(gold.values) < 1000
    if unit in ("clock", "ratio", "season"):
        return False
    is_year = not gold.unit and all(1000 <= value <= 2100 for value in gold.values)
    if is_year and re.search(r"\b(?:when|year)\b", question, re.I):
        return False
    if unit == "percent":
        return gold.unit == unit or re.search(r"percent|%|per cent|share|rate\b|proportion", question, re.I) is not None
    return not gold.unit or any(UNITS.get(word) == unit for word in re.findall(r"[^\W\d_]+", question.lower()))


def plain_digits(text: str) -> str:
    """Digits of any script as ASCII, vulgar fractions as 3/4, and TeX's numbers without its commands."""
    if "\\" in text or "$" in text:
        text = _without_tex(text)
    text = _RAISED.sub(lambda match: f"^{unicodedata.normalize('NFKC', match[0])}", text)
    if "^" in text:
        text = _POWER.sub(lambda match: str(int(match[1]) ** int(match[2])), text)
    if text.isascii():
        return text
    text = text.replace("\u066b", ".").replace("\u066c", ",").replace("\u2212", "-")
    return "".join(_digit(char, text[i - 1 : i]) for i, char in enumerate(text))


def _digit(char: str, before: str) -> str:
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    if "VULGAR FRACTION" in unicodedata.name(char, "") and not char.endswith("\u215f"):
        return (" " if before.isdigit() else "") + unicodedata.normalize("NFKC", char).replace("\u2044", "/")
    return char


_RAISED = re.compile("(?<=[0-9])[\u00b9\u00b2\u00b3\u2070\u2074-\u2079]+")
_POWER = re.compile(r"(?<![\w.^])(\d{1,3})\s?\^\s?\{?(\d{1,2})\}?(?![\w^])")
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]+)\}\s*\{([^{}]+)\}|(\d)\s*(\d))")
_STYLE = re.compile(r"\\(?:boxed|fbox|text\w*|math\w*|operatorname)\s*\{([^{}]*)\}")
_MATHS = re.compile(r"\$\$?(?=\S)([^$\n]{1,80}?)(?<=\S)\$\$?(?!\d)|\\[(\[](.*?)\\[)\]]", re.DOTALL)


def _without_tex(text: str) -> str:
    text = _FRACTION.sub(lambda match: f"{match[1] or match[3]}/{match[2] or match[4]}", text)
    text = _STYLE.sub(r"\1", _STYLE.sub(r"\1", text))
    text = re.sub(r"\\sqrt\s*\{([^{}]*)\}", "sqrt \\1", text)
    text = _MATHS.sub(lambda match: f" {match[1] or match[2] or ''} ", text)
    return text.replace("\\%", "%").replace("\\$", "$").replace("\\,", "")


def _season(match: re.Match[str]) -> Quantity | None:
    first, second = int(match["first"]), match["second"]
    last = int(second) if len(second) == 4 else first // 100 * 100 + int(second)
    if last == first - 99:
        last += 100  # 1999-00
    if last != first + 1:
        return None
    return Quantity(*match.span(), frozenset({Fraction(first)}), "season")


def _clock(match: re.Match[str]) -> Quantity | None:
    if match["named"]:
        minutes = {720} if match["named"].lower() != "midnight" else {0}
    elif match["hour"]:
        hour = int(match["hour"]) % 12 + (12 if match["half"].lower() == "p" else 0)
        minutes = {hour * 60 + int(match["minute"] or 0)}
        if int(match["hour"]) > 12:
            return None
    else:
        hour, minute = int(match["hour24"]), int(match["minute24"] or 0)
        minutes = {hour * 60 + minute} | ({(hour + 12) * 60 + minute} if 0 < hour < 12 else set())
    return Quantity(*match.span(), frozenset(map(Fraction, minutes)), "clock")


def _ratio(match: re.Match[str]) -> Quantity | None:
    bottom = int(match[2])
    return Quantity(*match.span(), frozenset({Fraction(int(match[1]), bottom)}), "ratio") if bottom else None


def _tall(match: re.Match[str]) -> Quantity:
    return Quantity(*match.span(), frozenset({Fraction(int(match[1]) * 12 + int(match[2]))}), "inch")


def _plain(match: re.Match[str]) -> Quantity | None:
    values = _values(match)
    if not values:
        return None
    begin, end = match.span()
    unit = match["lead"] or match["money"] or match["unit"] or ("ad" if match["era"] else "")
    scale = match["scale"]
    money = bool(match["lead"] or match["money"]) or UNITS.get((match["unit"] or "").lower()) in MONEY
    attached = scale and ((not match["gap"] and (scale.isupper() or scale == "k")) or scale in ("B", "M"))
    if scale and scale.lower() in _SHORT_SCALES and not (money or attached):
        return Quantity(begin, end, values, UNITS.get(scale.lower(), scale.lower()))  # 5 m is five metres
    if match["words"] and match["words"].lower() == "one" and not (scale or unit):
        return None if _counts_nothing(match) else Quantity(begin, end, values, "")
    if match["part"]:
        values = frozenset(value + Fraction(1, 2 if match["part"].endswith("half") else 4) for value in values)
    factor = _SCALES[scale.lower()] if scale else 1
    sign = -1 if match["sign"] and match["sign"].strip() != "+" else 1
    return Quantity(begin, end, frozenset(sign * factor * v for v in values), UNITS.get(unit.strip().lower(), ""))


_ONE_OF = re.compile(
    r"\s+(?:of|can|could|should|must|may|might|would|will|who|that|which|another|day|time|is|was|has)\b", re.I
)
_ANY_ONE = re.compile(r"\b(?:no|any|every|some|this|that|which|each|another|someone|other)\s$", re.I)


def _counts_nothing(match: re.Match[str]) -> bool:
    return bool(_ONE_OF.match(match.string, match.end()) or _ANY_ONE.search(match.string[: match.start()]))


def _values(match: re.Match[str]) -> frozenset[Fraction]:
    if match["top"]:
        bottom = int(match["bottom"])
        return frozenset({int(match["whole"] or 0) + Fraction(int(match["top"]), bottom)} if bottom else ())
    if match["of_one"]:
        count = {"a": 1, **number_words()}[match["count"].lower()]
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
    if digits.count(".") > 1:
        return frozenset({Fraction(digits.replace(".", "").replace(",", "."))})
    decimal = _shortest(digits.replace(",", "."))
    is_ambiguous = not match["scale"] and re.fullmatch(r"[1-9]\d{0,2}\.\d{3}", digits)
    return frozenset({decimal, decimal * 1000} if is_ambiguous else {decimal})


def _shortest(digits: str) -> Fraction:
    """The value of a decimal; of one that a single-precision column writes (0.10000000149011612), the short one."""
    if len(digits.replace(".", "").lstrip("0")) > 9 and "." in digits:
        import numpy as np

        short = str(np.float32(digits))
        if float(np.float32(digits)) == float(digits) and len(short) <= 9:
            return Fraction(short)
    return Fraction(digits)


def _joined(found: Sequence[Quantity], text: str) -> list[Quantity]:
    """Measures of two units as one: 6 ft 2 in, 2 hours and 30 minutes."""
    joined: list[Quantity] = []
    for quantity in found:
        before = joined[-1] if joined else None
        factor = _PARTS.get((before.unit, quantity.unit)) if before else None
        if before and factor and re.fullmatch(r",?\s*(?:and\s+)?", text[before.end : quantity.begin]):
            value = min(before.values) * factor + min(quantity.values)
            joined[-1] = Quantity(before.begin, quantity.end, frozenset({value}), quantity.unit)
        else:
            joined.append(quantity)
    return joined
