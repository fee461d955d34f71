"""Answers that may say the same as the gold one in a way that no rule can tell: in another language, a near spelling,
with most of its words in another form or order, or as a part of its name. They get no verdict.
"""

from __future__ import annotations

import difflib
import functools
import re
import unicodedata
from collections.abc import Iterable

from kbtrain.answers import forms
from kbtrain.answers.names import listed
from kbtrain.answers.quantities import UNIT_NAMES, UNITS, plain_digits, quantities, whole_quantity
from kbtrain.answers.words import LISTS, any_of, names_by_word, number_words, pattern, words
from kbtrain.answers.writing import has_chinese

_ENGLISH = LISTS["asking"]["english"]
_IDLE = LISTS["yes_no"]["idle"] | _ENGLISH
_FOREIGN = LISTS["near"]["foreign"]
_LETTERS = re.compile(r"[^\W\d_]+")
_NAME = re.compile(r"[^\W\da-z_][^\W\d_]+(?:[ ,'-]+[^\W\d_]{2,})+")
_NUMBERED = re.compile(r" (?:[IVXLCDM]+|Jr|Sr)\b")
asks_person = functools.lru_cache(1024)(pattern("asks_person").search)  # each answer to a question asks for it
_NONE = LISTS["turning"]["negators"] | LISTS["near"]["none"]
_ENDING = re.compile(rf"(?:(?<=(\w))\1)?(?:{any_of(LISTS['near']['endings'])})?")
_NUMERALS = {word: n for word, n in names_by_word("numerals").items() if word not in number_words()}
_NUMERALS |= {word: n for word, n in names_by_word("scales").items() if word in ("mil", "mille")}
_BOUNDS = LISTS["near"]["bounds"]
_ORDINAL = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b")
_FORMULA = re.compile(r"sqrt|[\^=<>π]")
_LONG = 5  # letters from which a near spelling counts: Iran is not Iraq
_ALIKE = 0.85  # share of common letters: Caspar is near Kaspar, Slovenia not near Slovakia


def may_be_same(answer: str, gold: str, question: str) -> bool:
    """True if an answer without the gold one may still give it."""
    return (
        _is_foreign(answer, f"{gold} {question}")
        or _is_misspelt(answer, gold, question)
        or _is_part(answer, gold, question)
        or _shares_words(answer, gold, question)
        or (" ".join(words(gold)) in LISTS["near"]["none"] and not _NONE.isdisjoint(words(answer)))
    )


def _is_foreign(answer: str, texts: str) -> bool:
    """True if an answer is in another script than gold answer and question, or in another language than an English
    question."""
    scripts = _scripts(answer)
    if scripts and scripts.isdisjoint(_scripts(texts)):
        return True
    small = {word for word in _LETTERS.findall(answer) if word.islower()}
    return not small.isdisjoint(_FOREIGN) and not _ENGLISH.isdisjoint(_LETTERS.findall(texts.casefold()))


@functools.lru_cache(maxsize=1024)
def _scripts(text: str) -> frozenset[str]:
    if text.isascii():
        return frozenset({"LATIN"}) if _LETTERS.search(text) else frozenset()
    return frozenset(unicodedata.name(char, "").partition(" ")[0] for char in text if char.isalpha())


def _is_misspelt(answer: str, gold: str, question: str) -> bool:
    """True if each word of a gold answer, or one much like it, is in the answer, and one is but alike."""
    needed = _plain_words(gold)
    if not any(map(_is_long, needed)):
        return False
    held = {*_plain_words(answer)} - {*_plain_words(question)}
    missing = [word for word in needed if word not in held]
    return bool(missing) and all(_is_long(word) and _has_alike(word, held) for word in missing)


def _is_long(word: str) -> bool:
    return len(word) >= _LONG and word.isalpha()


def _has_alike(word: str, held: Iterable[str], share: float = _ALIKE) -> bool:
    near = (other for other in held if _is_long(other) and abs(len(other) - len(word)) <= 2)
    return any(
        2 * sum(map(other.__contains__, word)) >= share * (len(word) + len(other))  # a quick bound of the ratio
        and difflib.SequenceMatcher(None, word, other).ratio() >= share
        and not _is_adjective(*sorted((word, other)))
        for other in near
    )


def _is_adjective(name: str, longer: str) -> bool:
    """True for a place's name and its people's: Albania is not the language, Albanian."""
    return longer.startswith(name) and longer[len(name) :] in ("n", "an", "i")


def _shares_words(answer: str, gold: str, question: str) -> bool:
    """True if an answer has the words of a gold one that does not name a person, in some form or order: "by frying it"
    for fried, "Paul was lent money by Peter". Of a phrase most words do, and of a bound its numbers."""
    needed = _content(gold)
    if (
        _NUMBERED.search(gold)
        or _FORMULA.search(gold)
        or (asks_person(question) and gold.istitle() and not listed(gold))
    ):
        return False
    asked, held = _content(question), {*_read_words(answer)}
    starts = {_start(word) for word in needed}
    new = {word for word in held - asked if _start(word) in starts or len(needed) > 1}
    shared = {word for word in needed if word in held or any(_is_form(word, other) for other in new)}
    if len(needed) > 1:
        shared |= {word for word in needed - shared if _is_long(word) and _has_alike(word, new, 0.83)}
    told, missing = needed - asked, needed - shared
    if not missing and not any(map(_has_digit, held - needed)):
        return len(needed) > 1 + gold.istitle() or (gold.islower() and gold.isalpha() and bool(needed))
    if any(map(_has_digit, needed)):
        mixed = len([*filter(_has_digit, needed)]) > 1 and any(map(_has_digit, held - needed))
        return bool(shared) and len(needed) > 1 and missing <= _BOUNDS and not mixed
    if not gold.islower():
        return len(told) > 3 and len(told & shared) * 4 >= len(told) * 3
    return len(listed(gold)) < 2 and len(told & shared) * 2 > len(told)


def may_count_same(answer: str, gold: str, question: str) -> bool:
    """True if an answer may give a gold number in words of another language, or says that there is none; and for a
    unit by another name."""
    if (unit := UNITS.get(gold.casefold())) and len(gold) > 1 and gold.casefold() not in words(answer):
        return any(UNITS[name] == unit for name in UNIT_NAMES.findall(answer.casefold()))
    bare, counted = whole_quantity(answer), quantities(plain_digits(gold))
    if bare and not bare.unit and len(counted) == 1 and not counted[0].begin and bare.values & counted[0].values:
        return counted[0].unit not in ("bc", "clock", "season", "ratio", "label") and gold[-1].isalpha()
    number, foreign, said = whole_quantity(gold), _ENGLISH.isdisjoint(words(question)), words(answer)
    if not number:
        return foreign and not _has_digit(gold) and answer.strip(" .").isdigit()
    if has_chinese(answer) or quantities(plain_digits(answer)):
        return False
    if 0 in number.values and not _NONE.isdisjoint(said):
        return True
    numerals = [word for word in said if word in _NUMERALS]
    return int(_NUMERALS[numerals[0]]) in number.values if len(numerals) == 1 else foreign or len(numerals) > 1


def _has_digit(word: str) -> bool:
    return any(map(str.isdigit, word))


@functools.lru_cache(maxsize=1024)
def _content(text: str) -> frozenset[str]:
    """The words of a text that tell something; of a list of names the last ones."""
    parts = listed(text)
    if len(parts) > 1 and all(part[0].isupper() and not part.isupper() for part in parts):
        text = " ".join(part.split()[-1] for part in parts)
    told = frozenset(_read_words(text)) - (_IDLE - {"may"})
    return frozenset(word for word in told if len(word) > 1 or _has_digit(text))


def _read_words(text: str) -> list[str]:
    return _ORDINAL.sub("", forms.readings(text)[0]).split()


def _start(word: str) -> str:
    return word[:3].replace("y", "i")


def _is_form(word: str, other: str) -> bool:
    """True for two forms of one word: ski and skiing, foggy and fog, красный and красного."""
    if _start(word) != _start(other) or not (word.isalpha() and other.isalpha()):
        return False
    word, other = word.replace("y", "i"), other.replace("y", "i")
    stem = next((i for i, (a, b) in enumerate(zip(word, other, strict=False)) if a != b), min(len(word), len(other)))
    return all(_ENDING.fullmatch(form, stem) for form in (word, other))


def _is_part(answer: str, gold: str, question: str) -> bool:
    """True if an answer says nothing but a part of a name, of no person and no number: Frankfurt, of Frankfurt am
    Main."""
    whole = {*_plain_words(gold)}
    said = {*_plain_words(answer)} - {*_plain_words(question)} - _IDLE
    plain = _NAME.fullmatch(gold) and not _NUMBERED.search(gold) and not asks_person(question)
    return bool(plain and said) and said < whole and gold.split()[0] not in LISTS["parts"]["other_place"]


def _plain_words(text: str) -> tuple[str, ...]:
    return words(forms.unaccented(text))
