"""Yes or no in an answer to a yes/no question; true and false, 是 and 不是 alike.

An answer says yes or no with its first word, also after a short preamble, or in a sentence that can be read safely: a
short one ("They are not."), "Neither ...", "Both ..." where the same is asked, or the question's own words as a
statement. All others are not gradable by a rule: None.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from kbtrain.answers import forms
from kbtrain.answers.words import LISTS, any_of, normalise, patterns, words
from kbtrain.answers.writing import CJK, has_chinese, simplified

_YES, _NO = LISTS["yes_no"]["gold_yes"], LISTS["yes_no"]["gold_no"]

_FORMS = patterns("yes_no_")
_SAYS_YES, _SAYS_NO = (any_of(LISTS["yes_no"][name]) for name in ("yes", "no"))
_LEAD = re.compile(
    rf"^[\W_]*(?:(?P<no>{_SAYS_NO})|(?P<yes>{_SAYS_YES}))\b(?!\s*(?:or|and|/)\s*(?:no|false|yes|true)\b)(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_PLAIN_LEAD = re.compile(r"\W*(?:yes|no|true|false)\W*(?:$|[,.])", re.IGNORECASE)
_IDLE = LISTS["yes_no"]["idle"]


_PARTICLE = "[吗么吧呢?？。.!！]"


@functools.lru_cache(maxsize=1024)  # every answer to a question asks for it
def polarity(gold: tuple[str, ...], question: str) -> bool | None:
    """Gold verdict of a yes/no question: True for yes; None for any other question.

    A question that asks who or what has another kind of answer, also where it is called "Yes" or "True".
    """
    # of hundreds of aliases none says yes or no
    golds = {normalise(simplified(text)) for text in gold} if len(gold) <= 12 else set()
    if not golds or _FORMS["wh"].search(question) or not (golds <= _YES or golds <= _NO):
        return None
    return golds <= _YES


def says_yes(answer: str, question: str) -> bool | None:
    """True for yes, False for no, None for an answer in which no rule can read either."""
    if has_chinese(answer):
        return _says_yes_in_chinese(simplified(answer), simplified(question))
    text, question = forms.unify_spelling(answer.strip()), forms.unify_spelling(question)
    for _ in range(3):
        lead = _lead(text)
        if lead is not None:
            return lead
        stripped = _FORMS["preamble"].sub("", text, count=1)
        if stripped == text:
            break
        text = stripped
    sentence = _FORMS["sentence"].split(text, maxsplit=1)[0]
    statement = _FORMS["true_or_false"].sub("", question)
    if _FORMS["says_nothing"].search(sentence) or _FORMS["not"].search(statement) or re.search(r"\bor\b", statement):
        return None
    short = _FORMS["short"].match(sentence)
    if short:
        return not short["denied"]
    if _FORMS["both_alone"].match(sentence) and _FORMS["both"].search(question):
        return True
    if _FORMS["neither_or_only"].match(sentence) and _FORMS["both"].search(question):
        return False
    return _read_statement(sentence, statement)


def says_nothing(answer: str) -> bool:
    """True for an answer that says that it does not know: it is wrong for any question."""
    return (
        _FORMS["says_nothing"].search(_FORMS["sentence"].split(answer.strip(), maxsplit=1)[0]) is not None
        and _lead(answer) is None
    )


def restates(answer: str, question: str) -> bool:
    """True for a question's own words: "The law does not mention it" says no where it is asked whether it does."""
    asked = words(re.sub(f"{_PARTICLE}|了|是否|有没有", "", question))
    silent = _FORMS["says_nothing"].search(answer)
    lacks = words(silent[0].replace("unknown", "known"))[-1:] if silent else ()  # no evidence, if that is asked for
    named = any(word.startswith(lacks) for word in asked)
    restated = named or _in_order([word for word in asked if word not in _IDLE], words(answer))
    return restated and not _FORMS["own_doubt"].match(answer)


def bare(golds: tuple[str, ...], answer: str, question: str) -> tuple[str, ...]:
    """Yes, of "Yes, since March 2024", for an answer that says no more, or the contrary; else the gold answers."""
    heads = tuple(gold.partition(",")[0] for gold in golds)
    if heads == golds or not _FORMS["echo"].match(question) or (polar := polarity(heads, question)) is None:
        return golds
    no_more = {*words(_FORMS["not"].sub(" ", answer))} <= {*words(question), "answer"} | _IDLE | _YES | _NO
    return heads if says_yes(answer, question) is (polar if no_more else not polar) else golds


def _lead(text: str) -> bool | None:
    """Yes or no by the first word; None where it says nothing, or a later sentence begins with the contrary."""
    match = _LEAD.match(text)
    if match is None:
        return None
    if match["no"] and match["no"].casefold() == "no" and not _FORMS["after_no"].match(match["rest"]):
        return None
    describes = ("right", "correct", "true", "exactly", "precisely", "indeed")
    if match["yes"] and match["yes"].casefold() in describes and _FORMS["describes"].match(match["rest"]):
        return None
    yes = bool(match["yes"])
    for sentence in _FORMS["sentence"].split(text)[1:]:
        later = _LEAD.match(sentence)
        if later and bool(later["yes"]) != yes and _PLAIN_LEAD.match(sentence):
            return None
    return yes


def _read_statement(sentence: str, question: str) -> bool | None:
    """Yes where a sentence states what the question asks, no where it denies it, in the question's own words."""
    contrasts = {word.casefold() for word in _FORMS["contrast"].findall(sentence)} - {*words(question)}
    if _FORMS["echo"].match(sentence) or contrasts:
        return None  # the question again, or a doubt
    question_words = [word for word in words(question) if word not in _IDLE]
    contrary = (
        rf"\b(?:but|,) (?:\w+ is |it is |is )?not (?:an? |the )?{re.escape(question_words[-1])}\b"
        if question_words
        else "$^"
    )
    if re.search(contrary, sentence, re.IGNORECASE):
        return False if _in_order(question_words, words(sentence)) else None
    sentence = _FORMS["turn"].split(sentence, maxsplit=1)[0]
    denied = len(_FORMS["not"].findall(sentence))
    stated = [word for word in words(_FORMS["not"].sub(" ", sentence)) if word not in _IDLE]
    if not question_words or denied > 1:
        return None
    if _in_order(question_words, stated):
        return not denied
    if _FORMS["same"].search(question):  # no other predicate: of the same nationality
        return not denied if _FORMS["called_alike"].search(sentence) else None
    if re.match(r"\W*(?:both|they)\b", sentence, re.IGNORECASE) and stated and _in_order(stated, question_words):
        return not denied if _same_stem(stated[-1], question_words[-1]) else None  # Both are American
    return True if not denied and _both_are(sentence, question) else None


def _both_are(sentence: str, question: str) -> bool:
    """True where two are asked about by name and then called what a sentence calls both, however it spells them.

    "X is both a singer and an actor" says it of one alone.
    """
    names, _, predicate = question.partition(" both ")
    if not predicate or not _FORMS["called_alike"].search(sentence):
        return False
    predicate_words = [word for word in words(predicate) if word not in _IDLE]
    stated = words(sentence)
    return (
        bool(predicate_words)
        and _in_order(predicate_words, stated)
        and any(word in stated for word in words(names) if len(word) > 3)
    )


def _in_order(expected: Sequence[str], actual: Sequence[str]) -> bool:
    """True if ``actual`` contains the expected words in their order."""
    remaining = iter(actual)
    return all(any(_same_stem(word, candidate) for candidate in remaining) for word in expected)


def _same_stem(first: str, second: str) -> bool:
    short, long = sorted((first, second), key=len)
    endings = ("", "s", "es", "ed", "d", "ing", "er", "ers", "n")
    return short == long or (len(short) >= 3 and long.startswith(short) and long[len(short) :] in endings)


def _says_yes_in_chinese(answer: str, question: str) -> bool | None:
    text = re.sub(r"\s", "", answer)
    if _FORMS["says_nothing"].search(text):
        return None
    if text.startswith(("没错", "不错")):
        return True
    lead = _FORMS["lead_zh"].match(text)
    if lead is None:
        return _restated(text, re.sub(r"\s", "", question))
    remainder = lead["rest"]
    if re.match(r"不[是对会能]|没有|否|" + _PARTICLE + r"*[?？]", remainder) and lead["yes"]:
        return None  # 是不是, 对吗？
    complete = re.match(r"^(?:的|了|啊|呀)*(?:$|[,，.。;；!！、:：\n]|他|她|它|这|那|两|二|都|并|不)", remainder)
    long = len(lead["no"] or lead["yes"]) > 1
    if complete or long:
        return bool(lead["yes"])
    return None if len(text) > 12 else bool(lead["yes"])


def _restated(text: str, question: str) -> bool | None:
    """A statement in the question's own words: 北京是中国的首都吗 -> 北京是中国的首都, or 北京不是中国的首都."""
    first = re.split("[,，。.!！;；\n]", text, maxsplit=1)[0]
    statement = re.sub(
        rf"是否|是不是|{_PARTICLE}|[^{CJK}\w]", lambda match: "是" if match[0].startswith("是") else "", question
    )
    stated = re.sub(rf"[^{CJK}\w]", "", first)
    if stated == statement:
        return True
    if re.sub(r"并?不(?=[是在会能属])|没(?=有)", "", stated) == statement and re.search("[不没]", stated):
        return False
    return None
