"""Other writings of a name that say the same: initials, middle names, numerals, former names, alternatives."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator

from kbtrain.answers.words import LISTS, any_of, pattern, read_data

_NICKNAME = re.compile(r"[\"\u201c]([^\"\u201d]+)[\"\u201d]")
_BEHIND_NAME = re.compile(r",? (?:Jr|Sr|CBE|OBE|MBE|KBE|PhD)\.?$")
_NAME = re.compile(r"[A-Z\u00c0-\u00de\u0391-\u03a9\u0410-\u042f][^\W\d_]*\.?(?:['\u2019-][^\W\d_]+)*")
_INITIAL = re.compile(r"[A-Z]\.?")
_OTHER_PLACE = LISTS["parts"]["other_place"]  # with these a shorter name is another one: West Africa, New Guinea
_KINDS = LISTS["parts"]["kinds"]
_NAMESAKES = LISTS["parts"]["namesakes"]
_PARTICLES, _JOINING = LISTS["parts"]["particles"], LISTS["parts"]["joining"]
_SAME = {name.casefold(): row for row in LISTS["same"].values() for name in row}
_FIRST_NAMES = LISTS["first_names"].values()
_NOUNS = read_data("patterns.toml")["rewritten"]["nouns"]
_NEGATED = re.compile(r"(?:un|in|im|il|ir|non-?)([a-z]{4,})")
_PREFIXES = {"HEBREW": "[והבכלמש]{1,2}", "ARABIC": "(?:[وفبك]|و?لل)"}  # and, the, in, as, to, from
_IN_CASE = r"(?:(?<=[воу] )|(?<=(?:на|из|до|от|об|во) )|(?<=(?:под|при) ))"
_ROMAN = "(?:(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{1,3}|V)|XC|XL|LX{0,3}|X{1,3})"
_NUMBERED = re.compile(rf"^(?P<name>.*[^\W\d_]) (?P<numeral>{_ROMAN})$")
_BEARER = re.compile(
    rf"\s+(?P<numeral>{_ROMAN})(?!\w)|,?\s(?:the |der |le )?(?:Jr|Sr|Junior|Senior|Elder|Younger|fils|p\u00e8re|Jeune"
    r"|\u00c4ltere|J\u00fcngere|d\. ?[\u00c4J])\b\.?"
)
_SEQUEL, CODE = pattern("sequel"), pattern("code")
_LETTERS = ("I", "V", "X")  # names themselves, as in Malcolm X
_CAPITAL = re.compile(r"\s+(?:the |der |le )?[^\W\da-z_]")
_BEFORE_SURNAME = LISTS["parts"]["before_surname"]
_THE_ORDINAL = re.compile(r"^(?P<name>[A-Z][^\W\d_]*) the (?P<ordinal>[A-Z][a-z]+|\d{1,2}(?:st|nd|rd|th))$")
_FORMER = pattern("former")
_SHORTENED = re.compile(r"^(?P<name>[^()]{4,}?)\s*\((?P<other>(?![IVX]+\))[A-Z]{2,6})\)$")  # such as (WHO)
_CELL = re.compile(r"[\[({]\s*(['\"]).*\1\s*[\])}]", re.DOTALL)
_IN_CELL = re.compile(r"(?<=[\[({,\s]['\"])[^'\"]+(?=['\"])")
_EITHER = re.compile(r"\s*(?:[|\n\t\uff5c\uff1b\u2022]|;;|<br ?/?>|\[SEP\]|<OR>)\s*|;\s+|\s+/\s+|\s+OR\s+")
_OR = re.compile(r"(?<=[^\W_]) or (?=[A-Z\d])|(?<=\w) or (?=\w+$)")
_TITLE = re.compile(r"^(?:Pope|King|Queen|Emperor|Empress|President|Sir|Saint|General|Lord|Lady|Dr\.?) (?=\S+ \S)")
_FIRM = re.compile(r",? (?:Inc|Ltd|Corp|Co|plc|LLC|GmbH|AG|F\.?C)\.?$")
_KIND = re.compile(r"^(?P<name>.+?)\s*\((?P<kind>[a-z][a-z ]*)\)$")
_VIETNAMESE = re.compile("[\u1ea0-\u1ef9\u0110\u0111\u01a0\u01a1\u01af\u01b0]|[\u00c0-\u00fd] [A-Z]")


def numeral_of(roman: str) -> int:
    values = [{"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}[char] for char in roman]
    return sum(-v if v < later else v for v, later in zip(values, [*values[1:], 0], strict=True))


def ordinal(n: int) -> str:
    """1 -> 1st, 12 -> 12th, 22 -> 22nd."""
    return f"{n}{'th' if 10 <= n % 100 <= 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


def other_number(noun: str) -> tuple[str, ...]:
    """The plural of a noun in small letters, or its singular."""
    if not re.fullmatch(r"(?:[a-z'-]+ )*[a-z]{3,}", noun):
        return ()
    return next(((re.sub(ending, other, noun),) for _, ending, other in _NOUNS if re.search(ending, noun)), ())


def may_name_another(answer: str, name: str) -> bool | None:
    """True if each place of a name has another numeral or generation behind it (Napoleon III, King Sr.); None where
    that may be the same person: Johann Strauss the Younger for II, Alexandre Dumas fils."""
    own = _BEARER.search(name)
    bare = name[: own.start()] if own else name
    places = [match.end() for match in re.finditer(rf"(?<!\w){re.escape(bare)}(?!\w)", answer)]
    marks = [_BEARER.match(answer, place) for place in places]
    if own and own["numeral"]:
        others = any(not mark or not mark["numeral"] for mark in marks)
        return None if others and any(_CAPITAL.match(answer, place) for place in places) else False
    sequels = [_SEQUEL.match(answer, place) for place in places]
    if places and all(sequel and (" " in name or not sequel[0].strip().isdigit()) for sequel in sequels):
        return None  # Rocky: Part II; but Python 3 is Python
    if not places or not bare[-1].isalpha() or not all(mark and mark["numeral"] not in _LETTERS for mark in marks):
        return False
    behind = {mark[0].strip(" ,.").casefold() for mark in marks if mark}
    if own and own[0].strip(" ,.").casefold() in behind:
        return False
    return True if own or all(mark and mark["numeral"] for mark in marks) else None


def holds_surname(answer: str, name: str) -> bool:
    """True if an answer has a person's last name alone, or with more first names."""
    bare = _BEHIND_NAME.sub("", name)
    names = [word for word in bare.split() if word not in _PARTICLES or word == "the"]
    if not 2 <= len(names) <= 4 or names[0] in _OTHER_PLACE or not all(map(_NAME.fullmatch, names)):
        return False
    particle = any_of(_PARTICLES)
    before = rf"(?:^(?i:{particle}) |(?P<first>[A-Z][\w'-]*\.?|{particle})\s)?(?<![\w-])"
    alone = re.finditer(rf"{before}{re.escape(names[-1])}(?!\w|-| [A-Z])", answer)
    longer = rf"(?<!\w){names[0]} (?:\S+ ){{1,2}}{names[-1]}(?!\w)"  # with names that the gold one lacks
    return any(_may_precede(match["first"], names) for match in alone) or (
        len(names) == 2
        and bare == name
        and (re.search(longer, answer) is not None or f"{names[1]} {names[0]}" in answer)  # Kurosawa Akira
    )


def _may_precede(word: str | None, names: list[str]) -> bool:
    """True for what may stand before a person's last name: nothing, a title, another of the names, also shortened."""
    if word is None or (len(names) > 2 and word == names[-2] and not _INITIAL.fullmatch(word)):
        return True
    if word in _BEFORE_SURNAME or any({word, names[0]} <= row for row in _FIRST_NAMES):
        return True
    return word.endswith("ly") or "'" in word or (word[-1] == "." and word[0] == names[0][0])


def alternatives(gold: str) -> tuple[str, ...]:
    """A gold answer's parts where it lists several: "Mumbai; Bombay", "Paris|Lutetia", "Beijing (formerly Peking)"."""
    if _CELL.fullmatch(gold):
        return tuple(_IN_CELL.findall(gold))
    former = _FORMER.match(gold) or _SHORTENED.match(gold)
    parts = [former["name"], former["other"]] if former else _EITHER.split(gold)
    return tuple(part.strip() for part in parts if part.strip())


def without_kind(gold: str, text: str) -> str | None:
    """Mercury, of "Mercury (planet)", where a question or answer (``text``) says the kind."""
    match = _KIND.match(gold)
    other = match and re.search(rf"{re.escape(match['name'])} \((?!{match['kind']})", text)
    return match["name"] if match and not other and match["kind"] in text.casefold() else None


def distinct_part(name: str) -> str | None:
    """The Amazon, of "Amazon River"; Beagle, of "HMS Beagle"."""
    words = name.removeprefix("the ").split()
    bare = [word for word in words if word.casefold() not in _KINDS and word not in ("of", "the")]
    return bare[0] if len(bare) == 1 < len(words) and bare[0][0].isupper() else None


def either_or(gold: str) -> tuple[str, ...]:
    """The two sides of "Mumbai or Bombay": right as whole answers, since "Truth or Dare" is one name."""
    sides = _OR.split(gold)
    return tuple(sides) if len(sides) == 2 else ()


def as_named(answer: str, name: str, person: bool, question: str) -> str:
    """An answer with the gold name where it has another writing of it: initials, all of a person's names, a prefix."""
    others, (_, comma, state) = _others(name, person), name.rpartition(", ")
    if others:  # "x": behind it goes a longer number on
        answer = others.sub(lambda m: m[0] if repeats(m[0], question) else name + "x" * bool(m.lastindex), answer)
    return as_named(answer, state, person, question) if comma and "." not in state else answer  # Cambridge, MA


def repeats(writing: str, question: str) -> bool:
    """True for a writing that a question has itself, and not as a choice: "VAT" does not say what VAT stands for.

    A name in a longer one is not asked for: of the US Open, the US."""
    bare = writing.removeprefix("the ").replace(".", "")
    behind = r"(?!\w)" + "(?-i:(?! [A-Z]))" * (bare.casefold() in _SAME)
    case = re.IGNORECASE * (bare.casefold() not in LISTS["parts"]["everyday"])  # who is not the WHO
    named = re.search(rf"(?<!\w){re.escape(bare)}{behind}", question.replace(".", ""), case)
    return named is not None and " or " not in question


@functools.lru_cache(maxsize=1024)
def _others(name: str, person: bool) -> re.Pattern[str] | None:
    same = _SAME.get(name.casefold().removeprefix("the "), frozenset())
    patterns = [
        f"(?i:{re.escape(one)})" if one.islower() else re.escape(one) for one in same if one.lower() != name.lower()
    ]
    patterns += _all_names(name, person) if " " in name or "." in name else _inflected(name)
    if CODE.fullmatch(name):  # a telephone number in other groups
        digits = r"(?:[ ./-]?\(0\))?[ ./()-]{0,2}".join(re.sub(r"\W", "", name))
        more = r"((?:[ -]\d+)+(?=\W*$))?(?![ ./()-]{0,2}\d)"  # of a longer one
        patterns = [rf"(?<!\d[ ./()-])(?:(?:\+|00)?\(?|\()(?i:{digits})\)?{more}"]
    if negated := _NEGATED.fullmatch(name):
        patterns.append(rf"(?:not|never)(?: been| at all| yet)? {negated[1]}")
    return re.compile(rf"(?<!\w)(?:{'|'.join(patterns)})(?!\w)") if patterns else None


def _all_names(name: str, person: bool) -> list[str]:
    """WHO for World Health Organization; George Herbert Walker for George H. W.; Mary Wollstonecraft for Mary."""
    words = name.replace(".", ". ").split()
    initials = "".join(word[0] for word in words if word[0].isupper())
    if (
        (not person or len(words) > 2)
        and not _NUMBERED.match(name)
        and len(initials) > 1
        and all(word[0].isupper() or word in _JOINING for word in words)
    ):
        letters = "".join(word[0].upper() + "?" * word.islower() + "[.]?" for word in words)
        return [f"(?:the )?{letters.removesuffix('[.]?')}", *_person(words, name, person)]
    return _person(words, name, person)


def _person(words: list[str], name: str, person: bool) -> list[str]:
    """A person's name with other first names, and with those that the gold one shortens."""
    if not all(_NAME.fullmatch(word) or word in _PARTICLES for word in words) or _INITIAL.fullmatch(words[-1]):
        return []
    parts = [rf"{word[0]}[^\W\d_]+" if _INITIAL.fullmatch(word) else re.escape(word) for word in words]
    if person and words[0] not in _OTHER_PLACE and name not in _NAMESAKES and not _NUMBERED.match(name):
        parts[0] += r"(?: [^\W\d_a-z]\w*\.?)*"
        parts[-1] = rf"(?:[^\W\d_a-z]\w+-)?{parts[-1]}"
    return [" ".join(parts)]


def _inflected(name: str) -> list[str]:
    """International Business Machines for IBM; בחיפה for חיפה, в Москве for Москва."""
    if name.isupper() and name.isalpha() and 1 < len(name) < 7:
        return [rf"(?:{'|'.join(f' {word}' for word in _JOINING)}|[ -])+".join(rf"{letter}[a-z]+" for letter in name)]
    if prefix := _PREFIXES.get(unicodedata.name(name[:1] or "a", "").partition(" ")[0]):
        return [prefix + re.escape(name)]
    return [rf"{_IN_CASE}{name.rstrip('аяьейоы')}[а-яё]{{1,2}}"] if re.match("[А-Я][а-яё]{3}", name) else []


_LISTED = re.compile(r"\s*(?:[,;&\u3001\uff0c]|\n\s*[-*\u2022]?|\band\b|\u548c)\s*(?:and\s+)?")
_BESIDE = re.compile(r"\s*[(),/]\s*|\s+or\s+")
_LAST_FIRST = re.compile(r"([^\W\d_][^\W\d_'-]+), ((?:[A-Z][\w.'-]* ?){1,3})")


def listed(text: str) -> tuple[str, ...]:
    """The parts of a list, "Page and Brin"; none of a text that is no list."""
    parts = tuple(filter(None, _LISTED.split(text.strip(" .-*\u2022"))))
    return parts if len(parts) > 1 else ()


def beside(text: str) -> tuple[str, ...]:
    """The parts of an answer that names something twice: "paracetamol (acetaminophen)"."""
    return tuple(filter(None, _BESIDE.split(text.strip(" ."))))


def first_name_first(answer: str) -> str:
    """Virginia Woolf, of "Woolf, Virginia"."""
    return _LAST_FIRST.sub(r"\2 \1", answer) if _LAST_FIRST.fullmatch(answer.strip(" .")) else answer


def writings(text: str) -> Iterator[str]:
    """Other writings that name the same also within an answer."""
    if numbered := _NUMBERED.match(text):
        number = numeral_of(numbered["numeral"])
        yield f"{numbered['name']} {number}"
        yield f"{numbered['name']} the {ordinal(number)}"
        yield from {"World War 1": ["the Great War"]}.get(f"{numbered['name']} {number}", [])
    elif named := _THE_ORDINAL.match(text):
        yield f"{named['name']} {named['ordinal']}"
    if _TITLE.match(text):
        yield _TITLE.sub("", text)
    if _FIRM.search(text):
        yield _FIRM.sub("", text)
    if _VIETNAMESE.search(text) and all(len(word) <= 6 for word in text.split()):
        yield text.replace(" ", "")  # Hanoi
    yield from _short_names(text)


def middle_and_last(text: str) -> str | None:
    """Quincy Adams, of John Quincy Adams; None for other than three full names."""
    names = text.split()
    full = len(names) == 3 and all(map(_NAME.fullmatch, names)) and not any(map(_INITIAL.fullmatch, names))
    return " ".join(names[1:]) if full and names[0] not in _OTHER_PLACE and not _NUMBERED.match(text) else None


def _short_names(text: str) -> Iterator[str]:
    """Names by which a person is known who is given with all names: Blake Tollison Shelton is Blake Shelton."""
    nickname = _NICKNAME.search(text)
    plain = _NICKNAME.sub(" ", text)
    if (behind := _BEHIND_NAME.search(plain)) and " " in plain[: behind.start()]:
        yield plain[: behind.start()]
    names = _BEHIND_NAME.sub("", plain).split()
    if len({*names}) != len(names) or not 2 <= len(names) <= 5 or names[0] in _OTHER_PLACE:
        return
    if not all(map(_NAME.fullmatch, names)) or _NUMBERED.match(" ".join(names)):
        return
    if nickname:
        yield f"{nickname[1]} {names[-1]}"
    if (short := f"{names[0]} {names[-1]}") not in _NAMESAKES:
        yield short
    if len(names) > 2:
        yield f"{names[0]} {' '.join(f'{name[0]}.' for name in names[1:-1])} {names[-1]}"
        yield f"{' '.join(f'{name[0]}.' for name in names[:-1])} {names[-1]}"
