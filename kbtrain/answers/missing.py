"""Answers that state no answer, in English and Chinese: "It is not mentioned in the documents.", 未提及."""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from itertools import pairwise

from kbtrain.answers.words import LISTS, is_empty, pattern
from kbtrain.answers.writing import CJK

PLACEHOLDERS = LISTS["no_answer"]["placeholders"]  # by :func:`placeholder_key`
_WHOLE, _SAYING = LISTS["no_answer"]["whole"], LISTS["no_answer"]["saying"]
_SILENT, _SILENT_ZH, _SILENT_OTHERS = map(pattern, ("silent", "silent_zh", "silent_others"))
_LEAD, _OPENING, _SORRY, _JOINED = map(pattern, ("lead", "opening", "sorry", "joined"))
# answers that are given beside a disclaimer: "I don't know, but I think it is Paris", "不确定，应该是巴黎"
_GUESS, _OWN_DOUBT, _STATED, _UNSURE = map(pattern, ("guess", "own_doubt", "stated", "unsure"))
_GUESS_ZH, _OWN_DOUBT_ZH, _STATED_ZH, _UNSURE_ZH = map(pattern, ("guess_zh", "own_doubt_zh", "stated_zh", "unsure_zh"))
_GUESS_CLAUSE = pattern("guess_clause")
_CLAUSE = re.compile(r"[.,;:!?()。，；：！？（）\n\u2026]+")
_TITLE = re.compile(r"[《〈][^《》〈〉]*[》〉]")
_QUOTED = re.compile(r"[\"“][^\"“”]*[\"”]")
_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
_PLAIN = 3  # words of a clause up to which it states nothing by itself


def placeholder_key(text: str) -> str:
    """A text as :data:`PLACEHOLDERS` has it."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'").split()).rstrip(".")


@functools.lru_cache(maxsize=1024)  # several rules ask it of one answer
def is_missing(answer: str) -> bool:
    """True for an empty answer and for one that says, in one of its clauses, that it is not known, and gives none.

    Whole words and forms of a sentence decide: a name that holds such a word is an answer ("The Unknown Soldier", "I
    Don't Know How to Love Him"), and so is a fact about what was unknown to others, or for a time.
    """
    if is_empty(answer):
        return True
    statement = _LEAD.sub("", _plain(answer), count=1)
    if _is_whole(statement):
        return statement.strip(" .") != "Na"  # sodium
    parts = _clauses(statement)
    if len(parts) > 1 and _is_whole(parts[0]) and _explained(parts[1]):
        return not _is_given(statement)
    denies = any(map(_is_whole, statement.split(":")[1:])) or any(map(_silent, parts))
    return denies and not _is_given(statement)


def before_disclaimer(answer: str) -> str:
    """The sentences of an answer before the first one that says that something is not known."""
    sentences = re.split(r"(?<=[.!?;:\n\u3002\uff01\uff1f])\s*|(?=\()", answer)
    return " ".join(itertools.takewhile(lambda sentence: not is_missing(sentence), filter(str.strip, sentences)))


def states_nothing(sentence: str) -> bool:
    """True for a sentence of a chain of reasoning that is empty, or states only that something is not known."""
    if not is_missing(sentence):
        return False
    stated = [part for part in _clauses(_plain(sentence)) if not _silent(part) and not _is_whole(part)]
    return not any(_n_words(part) > _PLAIN and not _OPENING.match(part) for part in stated)


def _plain(text: str) -> str:
    """NFKC, straight apostrophes, markdown dropped; titles in brackets, and quotes within more words, are "X"."""
    text = unicodedata.normalize("NFKC", text).replace("\u2019", "'").replace("\u2018", "'")
    text = _TITLE.sub(" X ", re.sub(r"[*`_#]+", " ", text)).strip()
    if _QUOTED.sub("", text).strip(" .!,;:"):  # a text that is quoted as a whole is what it says
        text = _QUOTED.sub(" X ", text)
    return re.sub(r"\b(is|are|was|were|do|does|did|has|have|had|can|could|would|ca|ai)\s?n\s?'?\s?t\b", r"\1n't", text)


def _clauses(text: str) -> list[str]:
    """The words of each clause, spaces between them; of clauses that have any."""
    return [" ".join(words) for words in map(_WORD.findall, _CLAUSE.split(text)) if words]


def _n_words(clause: str) -> int:
    """Chinese characters count as words."""
    return len(re.findall(rf"[{CJK}]|[^\W{CJK}]+", clause))


def _explained(behind: str) -> bool:
    """True if a clause continues with a sentence, and not with a name's end: "Uncertain, Texas", "Unknown (2011)"."""
    return _n_words(behind) > _PLAIN or behind[0].islower() or _OPENING.match(behind) is not None


def _is_whole(part: str) -> bool:
    return " ".join(_WORD.findall(part.replace("/", " "))).casefold() in _WHOLE


def _says_no(clause: str) -> bool:
    return _is_whole(clause) or _silent(clause)


def _silent(clause: str) -> bool:
    """True if a clause says that something is not known, and not as part of a title."""
    match = _SILENT.search(clause)
    named = match is not None and not _in_title(clause, match)
    return named or _SILENT_ZH.search(clause) is not None or _SILENT_OTHERS.search(clause) is not None


def _in_title(clause: str, match: re.Match[str]) -> bool:
    """True if the words are in capitals, and others behind them too: "I Don't Know How to Love Him"."""
    words, behind = match.group().split(), clause[match.end() :].split()
    if clause.isupper() or not any(word[0].isupper() for word in words[1:]):
        return False
    small = {"the", "a", "an", "of", "to", "in", "on", "by", "is", "not", "and"}
    titled = all(word[0].isupper() or word.casefold() in small for word in words)
    return titled and any(word[0].isupper() and word.casefold() not in _SAYING for word in behind)


def _is_given(text: str) -> bool:
    """True if a text with a disclaimer in it gives an answer all the same: as a guess, after "but", or before it.

    What is not known to documents or to science stays so unless a guess follows: "The architect is not known, but it
    was built in 1820" answers nothing.
    """
    clauses = [" ".join(part.split()) for part in _GUESS_CLAUSE.split(text)]
    clauses = [part for part in clauses if re.search(r"\w", part)]
    if any(
        not _says_no(part) and "?" not in part and (_GUESS.search(part) or _GUESS_ZH.search(part)) for part in clauses
    ):
        return True
    return any(
        (_says_no(clause) and not _says_no(behind) and _stated(clause, behind))
        or (not _says_no(clause) and _doubted(clause, behind))
        for clause, behind in pairwise(clauses)
    )


def _stated(doubt: str, behind: str) -> bool:
    """True for "I don't know" and "but it is Paris"."""
    english = _OWN_DOUBT.search(doubt) and _STATED.search(behind)
    return bool(english or (_OWN_DOUBT_ZH.search(doubt) and _STATED_ZH.search(behind)))


def _doubted(statement: str, doubt: str) -> bool:
    """True for "Paris" and "but I am not sure"; not for "Ann Lee?" and "I am not sure"."""
    joined = _JOINED.match(doubt) and _UNSURE.search(doubt)
    return "?" not in statement and bool(joined or _UNSURE_ZH.search(doubt)) and not _SORRY.match(statement)
