"""Grading of answers: the only place that decides what "correct" means, for labels and for end-to-end scores.

Three rules (KBM, section 4.2): ``exact`` (NaturalQuestions, TriviaQA), ``contains`` (the rest), ``option`` (multiple
choice). Texts are compared in the forms of :mod:`kbtrain.answers.forms`; traditional and simplified Chinese characters
are alike. An answer that holds a gold answer must also claim it (:mod:`kbtrain.answers.claims`). A yes/no question has
its own rule (:mod:`kbtrain.answers.yes_no`). Exact match and token F1 of short answers use the same forms.
"""

from __future__ import annotations

import functools
import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import filterfalse

from kbtrain.answers import forms, yes_no
from kbtrain.answers.answer_text import answer_text
from kbtrain.answers.claims import claim
from kbtrain.answers.missing import PLACEHOLDERS, before_disclaimer, is_missing, placeholder_key
from kbtrain.answers.names import (
    CODE,
    alternatives,
    as_named,
    beside,
    distinct_part,
    first_name_first,
    holds_surname,
    listed,
    may_name_another,
    repeats,
    without_kind,
)
from kbtrain.answers.near import asks_person, may_be_same, may_count_same
from kbtrain.answers.quantities import plain_digits, quantities, restate, whole_quantity
from kbtrain.answers.words import LISTS, folded, forms_of, normalise, pattern, text_key, words
from kbtrain.answers.words import is_empty as is_empty
from kbtrain.answers.writing import has_chinese, has_unspaced, simplified
from kbtrain.errors import UserError
from kbtrain.records import Question

Verdicts = Mapping[str, bool | None]  # key of an answer -> a judge's verdict; None: it abstained

NORMALISATION = "quantities-claims-near-yes-no/17"
RULES = {"normalisation": NORMALISATION, "options": "letters-texts-prefixes/5"}  # noted beside labels: others are old
_CHINESE = {"chinese": "simplified/4"}  # noted where it can matter, so that other labels stay what they are
_UNSPACED = {"unspaced": "characters/1"}  # Japanese, Korean, Thai and their kin, noted likewise


def contains(answer: str, gold: str) -> bool:
    """True if the gold answer's words occur in the answer in a row: "10" is not in "1066", "C" not in "C++".

    Nor is a Chinese numeral in a longer one (四 in 十四, 二月 in 十二月). Numbers, dates, units, initials and accents
    count in any of their forms (:mod:`kbtrain.answers.forms`).
    """
    answer, (gold,) = _alike(answer, (gold,))
    return _holds(answer, gold)


def _holds(answer: str, gold: str) -> bool:
    """As :func:`contains`, by the very characters."""
    if not words(gold):
        return bool(gold.strip()) and folded(gold).strip() in folded(answer)
    needles, squeezed = _needles(gold)
    hays, all_squeezed = _hays(answer)
    if any(needle in hay for hay in hays for needle in needles):
        return True
    if not any(needle in all_squeezed for needle in squeezed):
        return False  # other text between the words
    return any(needle in f" {hay} " for hay in forms.all_readings(answer) for needle in needles)


@functools.lru_cache(maxsize=1024)
def _needles(gold: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Readings of a gold answer between spaces, and without any."""
    readings = forms.gold_readings(gold)
    return tuple(f" {form} " for form in readings), tuple(form.replace(" ", "") for form in readings)


@functools.lru_cache(maxsize=512)  # aliases are looked for in one answer
def _hays(answer: str) -> tuple[tuple[str, ...], str]:
    """Readings of an answer between spaces, and the letters and digits of all of them."""
    readings = forms.readings(answer)
    return tuple(f" {form} " for form in readings), " ".join(form.replace(" ", "") for form in readings)


_OPENING, _CLOSING = "[{\u3010\u3014\u3008\u300a<", "]}\u3011\u3015\u3009\u300b>"
_SIGNS = str.maketrans(
    f'{_OPENING}{_CLOSING}*`$"\u201c\u201d\u300c\u300d\u300e\u300f\u3002\u3001\u2019',
    "(" * len(_OPENING) + ")" * len(_CLOSING) + " " * 10 + ".,'",
)
_COMMAND = re.compile(r"\\(?:boxed|fbox|text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
_TAG = re.compile(r"<(\w+)>(.*?)</\1>", re.DOTALL)
_QUOTE = re.compile(r"(?<![A-Za-z])'|'(?![A-Za-z])|(?<![A-Za-z0-9])_+|_+(?![A-Za-z0-9])")

# a letter outside of words: "A" and "I" are words themselves, so few words may follow those
_DENIED = r"(?:is|are|was)\s+(?:not\b|incorrect|wrong|false)|isn't|makes no\b|(?:选?项)?(?:是|为)?(?:不|错|有误)"
_WRONG = rf"(?!\s*[.)]?\s*(?i:{_DENIED}))"
_FIRST = re.compile(f"{forms_of('option_first')[0]}{_WRONG}")
_CLAIMS, _MENTIONS = (
    tuple(re.compile(form + _WRONG) for form in forms_of(f"option_{name}")) for name in ("claims", "mentions")
)
_SECOND = re.compile(forms_of("option_second")[0])
_PREFIX = re.compile(r"[\W_]*[Aa]\s*:\s*(?:(?i:option|choice|letter)\s+|选项|选)?(?=\S)")  # "A:" for "answer:"
_ONLY_LETTERS = re.compile(r"[\W_]*(?:[A-Z](?:[\W_]+|$)){2,}", re.DOTALL)
_REFUSED = re.compile(r"(?i:\b(?:not|isn't|wasn't|never|nor|neither|except)\b|[不非别没])[^.,;:]{0,12}$")


def option_letter(answer: str, options: tuple[str, ...]) -> str | None:
    """The option that an answer names, by its letter or by its text; None if it names none, or more than one.

    A letter counts alone ("B", "(b)", "**B**"), in front ("B. Paris"), where the answer says that it is the answer
    ("The correct answer is: B", "B is correct", "答案是B"), and, without one of these, where it is spoken of
    ("option B", "选B"). Without any letter, the full text of one option counts if no other option's text stands
    there and nothing is asked back. "A:" before another letter, or another option's whole text, means "answer:".
    "A or B", "A, B" and "A, perhaps B" name two; a list of options below its own answer line says nothing more.
    """
    letters = [chr(65 + i) for i in range(len(options))]
    text = _undressed(answer)
    if len(text) == 1 and text.upper() in letters:
        return text.upper()
    equal = [letter for letter, option in zip(letters, map(_undressed, options), strict=True)
             if text.rstrip(".") == option.rstrip(".")]  # fmt: skip
    full = [letter for letter, option in zip(letters, options, strict=True) if _same(text, letter, option)]
    for matches in (equal, full):  # "Aa" is not "aa", nor "x + 1" "x - 1", though their words are the same
        if len(matches) == 1:
            return matches[0]
    prefixed = _behind_prefix(text, letters, options)
    if prefixed:
        return prefixed
    if _ONLY_LETTERS.fullmatch(text) and len(set(text) & set(letters)) > 1:
        return None
    head, _, below = text.partition("\n")
    if len(_list_options(below, letters, options)) > 1 and not _list_options(head, letters, options):
        above = option_letter(head, options)  # "B", and the options repeated below
        if above and not _match_letters(_CLAIMS, below, letters):
            return above
    denied = _list_options(
        text, letters, options, rf"[\s,;]*(?i:{_DENIED})"
    )  # "C. Rome is incorrect; the answer is B."
    first = _match_letters((_FIRST,), text, letters) - denied
    claimed = _match_letters(_CLAIMS, text, letters)
    claims = first | claimed
    listed = _list_options(text, letters, options) - denied
    for candidates in (
        claims if claimed or len(listed) < 2 else listed,
        listed,
        _match_letters(_MENTIONS, text, letters) - denied,
        _by_text(text, letters, options) - denied,
    ):
        if candidates:
            return next(iter(candidates)) if len(candidates) == 1 else None
    return None


def _behind_prefix(text: str, letters: list[str], options: tuple[str, ...]) -> str | None:
    """The option behind "A:", by its letter or as all the rest; None without such a prefix."""
    prefix = _PREFIX.match(text)
    text_behind = text[prefix.end() :] if prefix else ""
    if not text_behind or _same(text_behind, "A", options[0]):
        return None
    letters_behind = _match_letters((_FIRST, *_CLAIMS), text_behind, letters) | _list_options(
        text_behind, letters, options
    )
    letters_behind |= {
        letter for letter, option in zip(letters, options, strict=True) if _same(text_behind, letter, option)
    }
    return next(iter(letters_behind)) if len(letters_behind) == 1 else None


def _undressed(answer: str) -> str:
    """An answer without markdown, TeX, tags and quotes, its brackets and full stops made plain."""
    text = unicodedata.normalize("NFKC", answer)
    for wrapping, replacement in ((_COMMAND, r"(\1)"), (_COMMAND, r"(\1)"), (_TAG, r"\2")):
        text = wrapping.sub(replacement, text)
    return _QUOTE.sub(" ", text.translate(_SIGNS)).strip()


def _same(text: str, letter: str, option: str) -> bool:
    """True if an answer is an option's text, or its letter and text; the "A" of "A. Germany" is not an article."""
    if words(text) in (words(option), words(f"{letter} {option}")):
        return True
    return not _FIRST.match(text) and normalise(text) == normalise(option)


def _match_letters(patterns: Iterable[re.Pattern[str]], text: str, letters: list[str]) -> set[str]:
    """The letters that patterns match, each with those that follow it in a list."""
    matches = set()
    for match in (match for form in patterns for match in form.finditer(text)):
        group = next(i for i, letter in enumerate(match.groups(), 1) if letter)
        letter: str | None = match[group]
        remainder = text[match.end(group) :]
        while letter and letter.upper() in letters:
            matches.add(letter.upper())
            second = _SECOND.match(remainder)
            letter = second and next(filter(None, second.groups()))
            remainder = remainder[second.end() :] if second else ""
    return matches


def _list_options(text: str, letters: list[str], options: tuple[str, ...], behind: str = "") -> set[str]:
    """The options that an answer lists with letter and text, and ``behind`` after them: "A. Spain B. Austria" lists
    two."""
    listed = set()
    for letter, option in zip(letters, options, strict=True):
        sign = r"\s*[.):,]" if letter in "AI" else r"\s*[.):,]?"  # "a noble gas" has an article
        label = rf"(?<![^\W_]){letter}{sign}\s*(?i:{re.escape(_undressed(option))})(?![A-Za-z0-9]){behind}"
        listed |= {letter} if re.search(label, text) else set()
    return listed


def _by_text(text: str, letters: list[str], options: tuple[str, ...]) -> set[str]:
    """The options whose text an answer holds and does not deny; not those inside a longer one ("Guinea-Bissau").

    Empty for a question back.
    """
    if "?" in text:
        return set()
    contained = [(letter, option) for letter, option in zip(letters, options, strict=True) if _holds(text, option)]
    outermost = {
        letter: option
        for letter, option in contained
        if not any(option != longer and _holds(longer, option) for _, longer in contained)
    }
    return {letter for letter, option in outermost.items() if not _denied(text, option)}


def _denied(text: str, option: str) -> bool:
    place = text.casefold().find(unicodedata.normalize("NFKC", option).casefold())
    return place >= 0 and _REFUSED.search(text[:place]) is not None


def _alike(answer: str, golds: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """All in simplified characters where a gold answer is Chinese: only there can it matter."""
    texts = tuple(golds)
    return (simplified(answer), tuple(map(simplified, texts))) if any(map(has_chinese, texts)) else (answer, texts)


def _in_chinese(question: Question) -> bool:
    return question.language == "zh" or any(map(has_chinese, (question.text, *question.answers, *question.options)))


def rules_of(questions: Iterable[Question]) -> dict[str, str]:
    """The rules that answers to these questions are graded and grouped by, to be noted and compared."""
    rules = dict(RULES)
    for question in questions:
        rules |= _CHINESE if _in_chinese(question) else {}
        rules |= _UNSPACED if any(map(has_unspaced, (question.text, *question.answers, *question.options))) else {}
        if len(rules) == len(RULES) + len(_CHINESE) + len(_UNSPACED):
            break
    return rules


def is_correct(question: Question, answer: str) -> bool:
    """True if an answer is right by the question's own rule; False also if the rule gives no verdict."""
    return rule_verdict(question, answer) is True


def rule_verdict(question: Question, answer: str) -> bool | None:
    """Verdict on an answer by the question's own rule; None where the rule can read none.

    That is an answer to a yes/no question that says neither in a form that can be read safely, and one that may deny
    the gold answer or be another form of it (:mod:`kbtrain.answers.yes_no`, ``claims``, ``near``); a judge can grade
    it. An empty one, and one that says that it does not know, is wrong.
    """
    # a model in a loop repeats its words up to the limit, and each place would be compared with all others
    answer = answer_text(_LOOP.sub(r"\1\1\1", answer) if len(answer) > 1_000 else answer)
    question = _with_options(question)
    if question.grading == "option":
        return named_option(question, answer) in question.answers
    if question.answers and all(placeholder_key(gold) in PLACEHOLDERS for gold in question.answers):
        missing = is_missing(answer) or placeholder_key(answer) in PLACEHOLDERS
        return None if not missing and _NEGATED.search(answer) else missing
    polar = yes_no.polarity(yes_no.bare(question.answers, answer, question.text), question.text)
    if polar is not None:
        answered_yes = yes_no.says_yes(answer, question.text)
        if answered_yes is None and (is_missing(answer) or yes_no.says_nothing(answer)):
            return False if polar or not yes_no.restates(answer, question.text) else None
        return None if answered_yes is None else answered_yes == polar
    gives = _is_exactly if question.grading == "exact" else _gives
    verdicts = [gives(replace(question, answers=golds), text) for text, golds in _comparisons(question, answer)]
    if True in verdicts:
        spans, said = _rates(" ".join(question.answers)), _rates(answer)
        other = bool(spans and said) and spans.isdisjoint(said)  # $48 per month for $48 per year
        return None if question.grading != "exact" and (other or _is_of_list(answer, question)) else True
    if question.grading == "exact" or is_missing(answer):
        return None if None in verdicts else False
    by_rate = _verdict_by_rate(question, answer)
    if by_rate or None in verdicts:
        return by_rate or None
    return None if any(may_count_same(answer, gold, question.text) for gold in question.answers) else by_rate


_OPTION = re.compile(r"(?:^|[\s(])([A-J])[.):]\s+(\S.*?)(?=[;,]?\s+\(?[A-J][.):]\s|\s*$)", re.DOTALL)
_LETTERED = re.compile(r"[A-J](?:[.):]\s|$)")


def _with_options(question: Question) -> Question:
    """A question whose gold answers are letters of options within its text ("B", "B. Mars"), as a multiple choice."""
    if question.options or not question.answers or not all(map(_LETTERED.match, question.answers)):
        return question
    found = dict(_OPTION.findall(question.text))
    golds = tuple(gold[0] for gold in question.answers)
    if len(found) < 2 or not "ABCDEFGHIJ".startswith("".join(found)) or not {*golds} <= found.keys():
        return question
    return replace(question, answers=golds, options=tuple(found.values()), grading="option")


def _comparisons(question: Question, answer: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Answer and gold answers as they are compared: quantities by their values, all else by its words."""
    asked, answers = question.text, tuple(map(html.unescape, question.answers))
    aliases = len(answers) > 1 and _asks_meaning(asked)  # what VAT stands for: an alias "VAT" does not say it
    answer = _VERSION.sub("v", answer) if any(re.match(r"v\d", gold) for gold in answers) else answer
    parts = ((gold, part) for gold in answers for part in (gold, *alternatives(gold)))
    doubtful = (((aliases and part.isupper()) or (part != gold and gold[-1:] == ")"), part) for gold, part in parts)
    told = [part for doubt, part in doubtful if not (doubt and repeats(part, asked))]
    golds = tuple(dict.fromkeys(told)) or answers
    golds += tuple(
        _TOWARDS.sub("", gold) for gold in golds if _TOWARDS.match(gold) and ("=" not in gold or "=" not in answer)
    )
    golds += tuple(filter(None, map(first_name_first, golds)))
    golds += tuple(filter(None, (without_kind(gold, f"{question.text} {answer}") for gold in golds)))
    values = [None if CODE.fullmatch(gold) else whole_quantity(gold) for gold in golds]
    if amounts := [value for value in values if value]:
        zero = "how many" in question.text.lower() and all(0 in value.values for value in amounts)
        nothing = zero and normalise(answer) in LISTS["near"]["none"]
        yield restate("0" if nothing else answer, amounts, question.text), tuple(value.word() for value in amounts)
    texts = tuple(gold for gold, value in zip(golds, values, strict=True) if not value)
    if texts:
        is_person = (asks_person(asked) or _asks_who(asked)) is not None
        for gold in texts:
            answer = as_named(answer, gold, is_person, asked if _asks_meaning(asked) else "")
        yield plain_digits(answer), tuple(map(plain_digits, texts))
    for gold in texts:  # 120k people, for 120,000 people
        if counted := quantities(plain_digits(gold)):
            yield restate(answer, counted, question.text), (restate(gold, counted, question.text),)


_VERSION, _RATE = pattern("version"), pattern("rate")
_asks_meaning, _asks_who = (functools.lru_cache(1024)(pattern(f"asks_{what}").search) for what in ("meaning", "who"))
_LOOP = pattern("loop")
_TOWARDS = re.compile(r"(?:to|in|at|from|by|into|on) (?:the )?(?=[A-Z]\D+$)|[a-z] ?= ?(?=[-\d])")


def _is_exactly(question: Question, answer: str) -> bool:
    return exact_match(answer, question.answers) == 1 or _is_short(answer, question)


def is_yes_no(question: Question) -> bool:
    """True for a question whose gold answer is yes or no, or true or false, 是 or 不是."""
    return question.grading != "option" and yes_no.polarity(question.answers, question.text) is not None


def _is_short(answer: str, question: Question) -> bool:
    """True for an answer that is a gold one without what goes without saying (:func:`forms.short_readings`)."""
    answer_readings = forms.readings(answer)
    short = [forms.short_readings(gold, question.text) for gold in question.answers]
    if any(not readings.isdisjoint(answer_readings) for readings in short):
        return True
    parts = beside(answer)
    if len(parts) > 1 and all(any(not one.isdisjoint(forms.readings(part)) for one in short) for part in parts):
        return True
    answered = sorted(map(normalise, listed(answer)))
    golds = [listed(gold) for gold in question.answers if answered]
    golds += [tuple(name.split()[-1] for name in names) for names in golds if all(" " in name for name in names)]
    return any(sorted(map(normalise, gold)) == answered for gold in golds)


def _gives(question: Question, answer: str) -> bool | None:
    """True if an answer holds a gold answer, and claims it; None where no rule can tell the latter."""
    answer_text, golds = _alike(answer, question.answers)
    if _is_short(answer, question) or exact_match(first_name_first(answer), golds):
        return True
    if is_missing(answer) and all(map(_SAYS_UNKNOWN.search, golds)):
        return True
    if is_missing(answer) and not any(map(is_missing, golds)):
        beyond = _BUT.search(answer_text)
        if (
            beyond
            and not is_missing(answer_text[beyond.end() :])
            and any(_holds(answer_text[beyond.end() :], gold) for gold in golds)
        ):
            return None
        answer_text = answer = before_disclaimer(answer_text)
    lists = [listed(gold) for gold in golds if " and " in gold or ("," in gold and re.search(r"[^\d,]\s?\d", gold))]
    for parts in filter(None, lists):  # of one part the others are no rivals
        told = replace(question, text=f"{question.text} {' '.join(parts)}")
        if all(_gives(replace(told, answers=(part,)), answer) for part in parts):
            return None if _CONTRAST.search(answer) else True
    held = [gold for gold in golds if _holds(answer_text, gold) and _in_capitals(answer, gold, question.text)]
    held = [gold for gold in held if not _FORMULA.search(gold) or _is_whole_formula(answer, gold)]
    others = [may_name_another(answer, gold) for gold in held]
    if all(others):
        return None if any(_comes_near(answer, gold, question.text) for gold in golds) else False
    if False not in others or all(_within_a_word(answer, gold) for gold in held):
        return None
    return claim(answer_text, golds, question.text)


def _is_of_list(answer: str, question: Question) -> bool:
    """True if an answer is but a list of three things or more, or of two lines, and a gold one is among the others."""
    answer = _NEXT_ITEM.sub("\n", answer.strip())
    golds = [{*words(gold)} for gold in question.answers]
    if ("," not in answer and "\n" not in answer) or any(golds[0].isdisjoint(gold) for gold in golds):
        return False  # the latter: one of several gold answers is asked for
    asked = {*words(question.text), "answer"}
    parts = [_ITEM.sub("", part) for part in listed(answer) if not asked.issuperset(words(part))]
    if len(parts) < 3 - ("\n" in answer) or max(len(part.split()) for part in parts) > 4:
        return False
    right = [exact_match(part, question.answers) == 1 for part in parts]
    return any(right) and not all(right) and len({part[:1].isupper() for part in parts}) == 1


_NEXT_ITEM = re.compile(r"\s*;\s+(?=[A-Z\d])|(?<=\S)\s+(?=\d{1,2}[.)]\s)")  # Paris; Lyon. 1. Paris 2. Lyon
_SAME_RATE = {"annum": "year", "annual": "year", "a": "year", "dai": "day"}


def _verdict_by_rate(question: Question, answer: str) -> bool | None:
    """Verdict on an answer that gives a gold quantity alone, by its span of time in other words: annually, for per
    year. None where more is said, or neither answer nor question names the span; False where it names another."""
    golds = [gold for gold in question.answers if re.search(r"\d", plain_digits(gold))]
    spans, bare = _rates(" ".join(golds)), tuple(filterfalse(is_empty, (_RATE.sub("", gold) for gold in golds)))
    if not (spans and bare):
        return False
    said = _rates(plain_digits(answer))
    if said and spans.isdisjoint(said):
        return False
    told, rest = replace(question, answers=bare), _RATE.sub("", answer)
    # not alone: "€600 in four parts a year", "€600 now, then €50 a year"
    alone = all(len(_RATE.findall(text)) < 2 for text in (*golds, answer)) and _is_exactly(told, rest)
    return rule_verdict(told, rest) and ((alone and (said or spans & _rates(question.text)) == spans) or None)


def _rates(text: str) -> set[str]:
    spans = (next(filter(None, match.groups())) for match in _RATE.finditer(text.lower()))
    return {_SAME_RATE.get(span, span) for span in spans}


_ITEM = re.compile(r"^(?:\(?\w[.)]\s+|(?:the|an?|and)\s+|[^\w\s]+)+", re.IGNORECASE)


_ALONE = r"(?:^|\b[a-z]+[,.:;]? |[(*\"']|\bThe ){}(?:s|'s)?\b(?! [A-Z])"  # no other name around it
_IN_PLACE = re.compile(r"[A-Z][^,]+, [A-Z][a-z]{3}[^,]*")  # Espoo, Finland
_BUT = re.compile(r"\b(?:but|however|still|though|from memory)\b")
_CONTRAST = re.compile(r"\b(?:while|whereas|but)\b")
_FORMULA = re.compile(r"sqrt|\u03c0|\^|\d[a-z]\b")
_FACTOR = re.compile(r"(?:(?<!\w)\d\w*\s*|[/^*])$")
_GOES_ON = re.compile(r"\)?\s*[/^*]|\w")


def _is_whole_formula(answer: str, gold: str) -> bool:
    """False if each place of a formula is part of another one: x in 2x, and in x^2."""
    pattern = r"[\s({]*".join(map(re.escape, re.findall(r"\w+|[^\w\s]", gold)))
    places = list(re.finditer(pattern, answer))
    whole = (p for p in places if not _FACTOR.search(answer[: p.start()]) and not _GOES_ON.match(answer, p.end()))
    return not places or next(whole, None) is not None


def _comes_near(answer: str, gold: str, question: str) -> bool:
    """True for what may name the same: a last name, a day before a month, a part in brackets, words in any order."""
    person = asks_person(question) is not None
    if person and holds_surname(answer, gold):
        return " or " in question or not _holds(question, gold.split()[-1])
    if _DAY_FIRST.search(answer) and _holds(_DAY_FIRST.sub(r"\2/\1/", answer), gold):
        return True
    if (part := distinct_part(gold)) and not _holds(question, part) and re.search(_ALONE.format(part), answer):
        return True
    if (gold[:1].islower() or (_IN_PLACE.fullmatch(gold) and not person)) and any(
        _holds(answer, short) and not re.search(rf"(?i:{re.escape(short)}), [A-Z]", answer)
        for short in forms.short_readings(gold, question) - {*forms.gold_readings(gold)}
    ):
        return True
    if (gold.islower() or _DENIES.search(gold)) and _NEGATED.search(gold) and _NEGATED.search(answer):
        return True
    parts = [part for part in re.split(r"\s*[()]\s*", gold) if part and not part.isdigit()]
    if len(parts) > 1 and any(_holds(answer, part) and not repeats(part, question) for part in parts):
        return True
    return may_name_another(answer, gold) is None or may_be_same(answer, gold, question)


def _within_a_word(answer: str, gold: str) -> bool:
    """True if each place of a name is joined to another word: C in Objective-C, iron in "iron-free"."""
    if not gold.isalpha():
        return False
    places = list(re.finditer(rf"(?<!\w){re.escape(gold)}(?!\w)", answer, re.IGNORECASE))
    joined = re.compile(rf"[^\W\d_]-{re.escape(gold)}(?!\w)|(?<!\w){re.escape(gold)}-[^\W\d_]", re.IGNORECASE)
    return bool(places) and len(joined.findall(answer)) == len(places)


_FUNCTION_WORDS = frozenset("it who us me you they them her him he she we one will may march august up".split())
_MONTHS_GO_ON = r"\s*(?:$|[.,;:!)]|\d|(?:is|was|and|to|in|of)\b)"  # behind a month that begins a sentence


_DENIES = re.compile(r"\b(?:no|not|none|cannot)\b")
_NEGATED, _DAY_FIRST, _SAYS_UNKNOWN = map(pattern, ("negated", "day_first", "says_unknown"))
_ASIDE = {  # Yes, it is Genesis; June Peters; a spring
    frozenset("yes no sorry well ok right so help".split()): r"^\W*{}\s*[,!]",
    frozenset(LISTS["months"]): "{} [A-Z][a-z]+",
    frozenset({"spring", "fall"}): forms_of("season_aside")[0],
    frozenset({"a"}): r"\b{} [a-z]+",
}
_AS_VERB = r"\s(?:me|us|him|her|them|you|it|this|that|to|there|up|out|off|away|\w{3,}ly)\b"  # behind: "lead me"
_BEFORE_VERB = r"\b(?:I|they|we|you|who|to|will|would|can|could|should|must|not)\s"


def _in_capitals(answer: str, gold: str, question: str) -> bool:
    """False where a gold name is an everyday word in the answer: US, WHO, It, May, The Who."""
    bare = gold.replace(".", "").strip().removeprefix("The ")
    word = bare.casefold()
    for asides, form in _ASIDE.items():
        if word in asides:
            answer = re.sub(form.format(bare), " ", answer)
            if not re.search(rf"(?<!\w){word}(?!\w)", answer, re.IGNORECASE):
                return False
    if not bare[:1].isupper() or exact_match(forms.without_year(answer), (gold,)):
        return True
    if bare.isupper() and (word in LISTS["parts"]["everyday"] or (bare.isalpha() and not answer.islower())):
        return re.search(rf"(?<!\w){r'[.]? ?'.join(bare)}(?!\w)", answer) is not None
    if word not in _FUNCTION_WORDS:
        # "the prince of Monaco" for Prince
        common = re.search(rf"(?<!\w){re.escape(word.rstrip('!?.'))}(?!\w)", answer)
        if not common or answer.islower() or bare in answer:
            return True
        if gold.startswith("The "):
            return False
        return _asks_who(question) is None and not re.search(
            rf"\b{re.escape(word)}{_AS_VERB}|{_BEFORE_VERB}{re.escape(word)}\b", answer
        )
    within = rf"(?<=[\w,][ ])[\"'\u201c*_]*{bare}(?!\w)|[\"'\u201c*_]{bare}[\"'\u201d*_]"
    begins = rf"(?<!\w){bare}(?={_MONTHS_GO_ON})" if word in ("may", "march", "august") else r"(?!)"
    small = rf"\b(?:in|of|during|by|until|since|early|late|mid) {word}\b" if answer.islower() else r"(?!)"
    return re.search(f"{within}|{begins}|{small}", answer) is not None


def graded(question: Question, answer: str, verdicts: Verdicts | None = None) -> bool | None:
    """Verdict on an answer, by the question's own rule or by a judge's verdicts.

    Multiple choice keeps its own rule: a judge would compare an option's letter with its text. None where the judge
    abstained or the rule reads no verdict (:func:`rule_verdict`), and for a question without gold answers. An empty
    answer is wrong and is put before no judge. Raises :class:`UserError` for an answer without a verdict.
    """
    if not question.answers:
        return None
    question = _with_options(question)
    if verdicts is None or question.grading == "option":
        return rule_verdict(question, answer)
    if is_empty(answer):
        return False
    key = text_key(answer)
    if key not in verdicts:
        what = f"question '{question.id}': no verdict on the answer {answer!r:.60}"
        raise UserError(f"{what}; run data_gen/judge.py again, or add {key!r}")
    return verdicts[key]


def group_key(question: Question, answer: str) -> str:
    """Answers with the same key count as the same answer for certainty (KBM, equation 1)."""
    answer, question = answer_text(answer), _with_options(question)
    if is_empty(answer):
        return ""
    letter = named_option(question, answer) if question.grading == "option" else None
    if letter:
        return letter
    if yes_no.polarity(question.answers, question.text) is not None:
        answered_yes = yes_no.says_yes(answer, question.text)
        if answered_yes is not None:
            return "yes" if answered_yes else "no"
    return _usual(simplified(answer) if _in_chinese(question) else answer)


def named_option(question: Question, answer: str) -> str | None:
    """As :func:`option_letter`, of a question's options; traditional and simplified Chinese characters are alike unless
    these alone tell options apart (發 beside 髮)."""
    if not _in_chinese(question):
        return option_letter(answer, question.options)
    options = tuple(map(simplified, question.options))
    merged = len(set(options)) < len(set(question.options))
    very = option_letter(answer, question.options) if merged else None
    return very or option_letter(simplified(answer), options)


_CLOSED = {"yes", "no", "noanswer"}  # HotpotQA: such an answer is right or wrong, never partly right


def exact_match(answer: str, golds: Iterable[str]) -> float:
    """1 if the answer is one of the reference answers in any of its forms, else 0."""
    answer_text, gold_texts = _alike(answer, golds)
    accepted = {form for gold in gold_texts for form in forms.gold_readings(gold)}
    if not accepted.isdisjoint(forms.readings(answer_text)):
        return 1.0
    squeezed = {form.replace(" ", "") for form in accepted}
    if squeezed.isdisjoint(form.replace(" ", "") for form in forms.readings(answer_text)) and answer_text.isascii():
        return 0.0
    return float(not accepted.isdisjoint(forms.all_readings(answer_text)))


def token_f1(answer: str, golds: Iterable[str]) -> float:
    """The best F1 over the reference answers, of words (Chinese: characters) with repeats, in their usual forms."""
    answer_text, gold_texts = _alike(answer, golds)
    return max((_f1(_usual(answer_text), _usual(gold)) for gold in gold_texts), default=0.0)


def _usual(text: str) -> str:
    """The usual form of an answer, in which Chinese characters are words."""
    return normalise(forms.readings(text)[0])


def _f1(answer: str, gold: str) -> float:
    if answer != gold and (answer in _CLOSED or gold in _CLOSED):
        return 0.0
    answer_words, gold_words = answer.split(), gold.split()
    common = sum((Counter(answer_words) & Counter(gold_words)).values())
    return 2 * common / (len(answer_words) + len(gold_words)) if common else 0.0
