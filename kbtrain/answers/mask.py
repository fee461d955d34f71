"""Mask the answers in evidence, so that a model's answer comes from the model itself (KBM, section 3.3 and figure 2).

Answers are found in any case, spacing, punctuation, accents, full or half width, simplified or traditional characters,
and numbers in any form (1000, 1,000, one thousand, 一千): text is folded to a form without these differences, with the
place of origin of each folded character. :func:`mask_leak` checks the result by independent rules and names what is
left.
"""

from __future__ import annotations

import functools
import re
import unicodedata

import regex

from kbtrain.answers.grading import contains, is_empty
from kbtrain.answers.words import LARGEST, NUMERAL, SCALES, chinese, english, from_chinese, from_english, is_number_word
from kbtrain.answers.writing import (
    CJK,
    KATAKANA,
    UNSPACED,
    has_chinese,
    has_unspaced,
    simplified_character,
    without_ignored,
)
from kbtrain.records import Question

_PARTS = re.compile(r"[\x00-\x7f]+|[^\x00-\x7f]")  # plain stretches at once, other characters one by one


def fold(text: str) -> tuple[str, list[int] | range]:
    """(folded, origin): full to half width, case, accents, traditional to simplified Chinese; origin[i] is the place
    in ``text`` of the folded character i."""
    if text.isascii():
        return text.lower(), range(len(text))
    folded: list[str] = []
    origin: list[int] = []
    for part in _PARTS.finditer(text):
        begin, plain = part.start(), part.group()
        simple = plain.lower() if plain[0] < "\x80" else _fold(plain)
        folded.append(simple)
        origin += range(begin, part.end()) if plain[0] < "\x80" else [begin] * len(simple)
    return "".join(folded), origin


def is_mark(char: str) -> bool:
    """True if a character is an accent on the one before it; combining marks of other scripts are letters."""
    return "\u0300" <= char <= "\u036f"


@functools.lru_cache(maxsize=65_536)
def _fold(char: str) -> str:
    char = {"\u066b": ".", "\u066c": ","}.get(char, without_ignored(char))
    if has_chinese(char):
        return simplified_character(char)
    if char.isdecimal():  # of any script
        return str(unicodedata.decimal(char))
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold())
    return "".join(c for c in plain if not is_mark(c))


MASK = "MASK"
_LETTER = rf"[^\W_{CJK}{UNSPACED}]"  # of a script with spaces between words
_OPENING, _CLOSING = "\"'“”‘’「『《〈([<（", "\"'“”‘’」』》〉)]>）.,;:!?。，；：！？"
_ARTICLE = r"(?:(?:an?|the)[\W_]{1,3})?"
_CHINESE_SPACED = r"[\s·・‧•・\-]{0,2}"
_PIECE = regex.compile(rf"\d+(?:[,'’]\d{{3}})+(?![\d.])|\d+(?:\.\d+)?|[{CJK}]|[{UNSPACED}]+|{_LETTER}+|[^\w\s]|_")
_DIGITS = re.compile(r"(?<![\d.,])\d{1,3}(?:[,'’]\d{3})+(?!\d|\.\d)|(?<![\d.])\d+(?!\d|\.\d|(?:[,'’]\d{3})+\.\d)")
_IN_WORD_FROM = 4  # letters; too many words begin with a shorter answer
_HANZI_NUMBER = re.compile("[零一二两三四五六七八九十百千万]{2,}")


def mask_answers(text: str, question: Question) -> str:
    """``text`` with every gold answer replaced by ``MASK``: all aliases, whole words.

    For multiple choice the text of the gold option is masked. Longer aliases go first, so that "US dollar" leaves no
    "MASK dollar". Chinese has no word boundaries: there an alias is masked anywhere.
    """
    gold = gold_texts(question)
    if not gold:
        return text
    folded, origin = fold(text)
    parts, position = [], 0
    possible = tuple(alias for alias in gold if _may_stand(alias, folded))
    for match in _pattern(possible).finditer(folded) if possible else ():
        begin, end = origin[match.start()], origin[match.end() - 1] + 1
        while end < len(text) and is_mark(text[end]):
            end += 1
        if begin >= position:
            parts += [text[position:begin], MASK]
            position = end
    return "".join(parts) + text[position:]


def mask_leak(masked: str, question: Question) -> tuple[str, ...]:
    """The gold answers that a masked text still shows, longest first: as words, at the beginning of a longer word
    (from four letters on: Paris in "Parisian"), spelled with spaces inside, as a number in another form, or in any form
    that grading counts (a date in another order, a person without middle names).

    A Chinese numeral of one character ("七") does not leak "7": it is in too many words.
    """
    folded, _ = fold(masked)
    return tuple(
        gold
        for gold in gold_texts(question)
        if _leaks(gold, masked, folded) or (len(gold) > 1 and contains(masked, gold))
    )


def gold_texts(question: Question) -> tuple[str, ...]:
    """The gold answers as texts, longest first."""
    texts = question.answers
    if question.grading == "option":
        texts = tuple(question.options[ord(letter) - 65] for letter in question.answers)
    return tuple(sorted({text.strip() for text in texts if not is_empty(text)}, key=lambda text: (-len(text), text)))


@functools.lru_cache(maxsize=1024)
def _pattern(gold: tuple[str, ...]) -> regex.Pattern[str]:
    return regex.compile("|".join(_alias(fold(text)[0]) for text in gold))


def _may_stand(gold: str, folded: str) -> bool:
    """False where a word of an answer, which has one form alone, is nowhere in a folded text: its pattern, which would
    match nothing, takes a millisecond to compile, and a question may have many aliases."""
    words = (piece for piece in _pieces(fold(gold)[0]) if piece.isalpha() and not has_chinese(piece))
    return all(word in folded for word in words if word != "and" and not is_number_word(word))


def _pieces(text: str) -> list[str]:
    """Words, numbers, Chinese characters and signs of a folded alias."""
    return list(_PIECE.findall(_without_article(text.strip().lstrip(_OPENING).rstrip(_CLOSING).strip())))


def _alias(text: str) -> str:
    groups = _numbers_joined(_pieces(text))
    words = [i for i, group in enumerate(groups) if regex.match(r"\w", group[0])]
    if not words:
        return re.escape(text.strip())
    pattern, previous, skipped = "", "", 0
    for i, group in enumerate(groups):
        if words[0] < i < words[-1] and i not in words:
            skipped += 1  # signs inside an answer are optional
            continue
        both_chinese = has_chinese(previous) and has_chinese(group[0]) and not skipped
        gap = _CHINESE_SPACED if both_chinese else rf"[\W_]{{0,{3 + 2 * skipped}}}{_ARTICLE}"
        pattern += (gap if pattern else "") + _form(group, i == 0, i == len(groups) - 1)
        previous, skipped = group[-1], 0
    return pattern


def _without_article(text: str) -> str:
    """An answer counts as right without its article ("the President"), so it must not be shown without it."""
    return re.sub(r"^(?:an?|the)\s+(?=\S)", "", text)


def _edged(pattern: str, sample: str, first: bool, last: bool) -> str:
    """A pattern at the ends of an alias: no more of the same word or number may follow. Chinese has no ends."""
    if first and regex.fullmatch(r"\d[\d.]*", sample):
        pattern = rf"(?<!\d)(?<!\d[.,])(?<!{_LETTER})" + pattern
    elif first and regex.match(_LETTER, sample):
        pattern = rf"(?<!{_LETTER})" + pattern
    if last and regex.fullmatch(r"\d[\d.]*", sample):
        return pattern + rf"(?![,'’.]?\d)(?!{_LETTER})"
    if last and regex.match(_LETTER, sample[-1]):
        return pattern + rf"(?!{_LETTER})"
    if has_unspaced(sample):
        return _whole_units(pattern, sample, first, last)
    return pattern


def _whole_units(pattern: str, sample: str, first: bool, last: bool) -> str:
    """A pattern that cuts no syllable of a script without spaces, and no run of katakana."""
    katakana = rf"[{KATAKANA}\u3099\u309a]"
    if first and regex.match(katakana, sample[0]):
        pattern = rf"(?<!{katakana})" + pattern
    if last:
        pattern += r"(?!\p{M}|[\u1161-\u11ff])"  # folded Hangul is made of single letters
    return pattern + rf"(?!{katakana})" if last and regex.match(katakana, sample[-1]) else pattern


def _numbers_joined(pieces: list[str]) -> list[list[str]]:
    """Pieces in groups: the words (or characters) of one number together, hyphens between them dropped."""
    groups: list[list[str]] = []
    i = 0
    while i < len(pieces):
        size = next((n for n in range(min(12, len(pieces) - i), 0, -1) if _value(pieces[i : i + n]) is not None), 1)
        groups.append(pieces[i : i + size])
        i += size
    return groups


def _value(pieces: list[str]) -> int | None:
    """The number that pieces spell, or None."""
    if len(pieces) == 1 and re.fullmatch(r"\d[\d,'’]{,60}", pieces[0]):
        return int(re.sub(r"\D", "", pieces[0]))
    if all(map(has_chinese, pieces)):
        return from_chinese("".join(pieces)) if pieces[-1] != "-" else None
    if pieces[0] == "-" or pieces[-1] == "-":
        return None
    return from_english([piece for piece in pieces if piece != "-"])


def _form(group: list[str], first: bool, last: bool) -> str:
    """A pattern for one group: the piece itself, or a number in all its forms."""
    value = _value(group)
    if value is None or value > LARGEST:
        sample = "".join(group)
        return _edged(re.escape(sample), sample, first, last)
    digits = str(value)
    head = len(digits) % 3 or 3
    thousands = [digits[:head], *(digits[i : i + 3] for i in range(head, len(digits), 3))]
    zeros = "0*" if group[0].startswith("0") else ""  # 007
    words, gap = english(value), r"[\s\-]*(?:and\s+)?"
    bare = group[0] in (*SCALES, "hundred")  # as in "2 million" and "Hundred Years' War"
    spelled = (rf"(?:one{gap})?" if bare else "") + gap.join(words[bare:])
    forms = [_edged(zeros + r"[,'’\s]?".join(thousands), digits, first, last), _edged(spelled, spelled, first, last)]
    numeral = chinese(value) if value < 10**8 else ""
    if len(numeral) > 1 or (numeral and has_chinese(group[0])):
        bounds = (rf"(?<!{NUMERAL})", rf"(?!{NUMERAL})") if first and last else ("", "")
        forms.append(numeral.replace("二", "[二两]").join(bounds))
    return f"(?:{'|'.join(forms)})"


def _leaks(gold: str, masked: str, folded: str) -> bool:
    short = _without_article(fold(gold)[0].strip())
    plain = regex.sub(r"[\W_]", "", short)
    if not plain:
        return gold in masked
    pieces = [piece for piece in _PIECE.findall(short) if piece not in _OPENING + _CLOSING]
    value = _value(pieces) if pieces else None
    if value is not None and len(plain) > 1 - plain.isdecimal():
        return value in _numbers(folded)
    bare = regex.sub(r"[\W_]", "", folded)  # most texts are done with this, and need no pattern
    if re.fullmatch(NUMERAL, plain):
        return re.search(rf"(?<!{NUMERAL}){plain}(?!{NUMERAL})", folded) is not None
    if has_chinese(plain) or has_unspaced(plain):
        return plain in bare and regex.search(r"[\W_]{0,2}".join(map(re.escape, plain)), folded) is not None
    special = not regex.match(r"\w", gold.strip()[0]) or not regex.match(r"[\w.,;:!?\"')\]]", gold.strip()[-1])
    if special:  # "C++", ".bo": without their signs they are other words
        return contains(masked, gold) and gold.strip().casefold() in masked.casefold()
    if plain not in bare:
        return False
    spaced = rf"(?<!{_LETTER})" + r"[\W_]{0,2}".join(map(re.escape, plain)) + rf"(?!{_LETTER})"
    prefix = rf"|(?<!{_LETTER}){re.escape(plain)}" if len(plain) >= _IN_WORD_FROM else ""
    return regex.search(spaced + prefix, folded) is not None


def _numbers(folded: str) -> set[int]:
    """All whole numbers in a folded text, in digits, English words or Chinese numerals."""
    values = {int(re.sub(r"\D", "", digits[:60])) for digits in _DIGITS.findall(folded)}
    words = re.findall(r"[a-z]+|[^\w\s-]", folded)
    i = 0
    while i < len(words):
        size = 1
        for n in range(min(12, len(words) - i), 0, -1) if is_number_word(words[i]) else ():
            if (value := from_english(words[i : i + n])) is not None:
                values.add(value)
                size = n
                break
        i += size
    return values | {value for text in _HANZI_NUMBER.findall(folded) if (value := from_chinese(text)) is not None}
