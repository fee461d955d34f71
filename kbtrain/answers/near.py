"""Answers that may say the same as the gold one in a way that no rule can tell: in another language, a near spelling,
or as a part of its name. They get no verdict.
"""

from __future__ import annotations

import difflib
import functools
import re
import unicodedata
from collections.abc import Iterable

from kbtrain.answers import forms
from kbtrain.answers.words import LISTS, any_of, words

_ENGLISH = LISTS["asking"]["english"]
_IDLE = LISTS["yes_no"]["idle"] | _ENGLISH
_FOREIGN = LISTS["near"]["foreign"]
_LETTERS = re.compile(r"[^\W\d_]+")
_NAME = re.compile(r"[^\W\da-z_][^\W\d_]+(?:[ ,'-]+[^\W\d_]{2,})+")
_NUMBERED = re.compile(r" (?:[IVX]+|Jr|Sr)\b")
ASKS_PERSON = re.compile(rf"\b(?:{any_of(LISTS['asking']['persons'])})\b", re.IGNORECASE)
_LONG = 5  # letters from which a near spelling counts: Iran is not Iraq
_ALIKE = 0.85  # share of common letters: Caspar is near Kaspar, Slovenia not near Slovakia


def may_be_same(answer: str, gold: str, question: str) -> bool:
    """True if an answer without the gold one may still give it."""
    return (
        _is_foreign(answer, f"{gold} {question}")
        or _is_misspelt(answer, gold, question)
        or _is_part(answer, gold, question)
        or (_counts_none(gold) and not LISTS["turning"]["negators"].isdisjoint(words(answer)))
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


def _has_alike(word: str, held: Iterable[str]) -> bool:
    near = (other for other in held if _is_long(other) and abs(len(other) - len(word)) <= 2)
    return any(
        difflib.SequenceMatcher(None, word, other).ratio() >= _ALIKE and not _is_adjective(*sorted((word, other)))
        for other in near
    )


def _is_adjective(name: str, longer: str) -> bool:
    """True for a place's name and its people's: Albania is not the language, Albanian."""
    return longer.startswith(name) and longer[len(name) :] in ("n", "an", "i")


def _is_part(answer: str, gold: str, question: str) -> bool:
    """True if an answer says nothing but a part of a name, of no person and no number: Frankfurt, of Frankfurt am
    Main."""
    whole = {*_plain_words(gold)}
    said = {*_plain_words(answer)} - {*_plain_words(question)} - _IDLE
    plain = _NAME.fullmatch(gold) and not _NUMBERED.search(gold) and not ASKS_PERSON.search(question)
    return bool(plain and said) and said < whole and gold.split()[0] not in LISTS["parts"]["other_place"]


def _plain_words(text: str) -> tuple[str, ...]:
    return words(forms.unaccented(text))


def _counts_none(gold: str) -> bool:
    return " ".join(words(gold)) in LISTS["near"]["none"]
