"""Kinds of utterances that need no search for any score of a gate (small talk, instructions about a text, arithmetic),
and messages that depend on the turns before them.

The rules read English and Chinese. Small talk and arithmetic must be the whole message, so "Hi, who wrote Emma?" stays
a question. An instruction must begin the first or the last line, and must need no fact: "Write a haiku" matches, "Write
a report on Chad" does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

from kbtrain.answers.words import LISTS, forms_of, pattern
from kbtrain.answers.writing import CJK
from kbtrain.records import Example, TurnExample, Utterance

UtteranceKind = Literal["greeting", "thanks", "acknowledgement", "instruction", "arithmetic"]
LONGEST_SMALL_TALK = 200  # characters
LONGEST_LINE = 500  # characters of a line that are read

# Small talk: the phrases of a kind, in English and in Chinese
_SMALL_TALK: tuple[UtteranceKind, ...] = ("thanks", "greeting", "acknowledgement")
_PHRASE = re.compile(
    "|".join(
        rf"(?P<{kind}>(?:{'|'.join(forms_of(f'talk_{kind}'))})(?![a-z0-9'])|{'|'.join(forms_of(f'talk_{kind}_zh'))})"
        for kind in _SMALL_TALK
    )
)
_SEPARATORS = re.compile(r"[^\w']+")

# forms of instructions; those about a text that is not in the message are none
_OF_THE_ANSWER = pattern("of_the_answer")
_INSTRUCTIONS = tuple(re.compile(form, re.IGNORECASE) for form in forms_of("instruction"))

_SUM, _ROOT, _CHINESE_SUM, _EQUATION = map(pattern, ("sum", "sum_root", "sum_chinese", "sum_equation"))
# A date, a name, a range and a ratio look like a sum: 9/11, 7-11, 4x4, 24/7, 1914 - 1918.
_AMBIGUOUS = re.compile(r"\s*(?:\d+(?:[-–/x]\d+)+|(?:1[5-9]|20)\d\d [-–] (?:1[5-9]|20)\d\d)\s*", re.IGNORECASE)
_ASKS_SUM = pattern("sum_asked")
_ENDS_SUM = pattern("sum_ends")
_SOLVES = pattern("sum_solves")


def utterance_kind(text: str) -> UtteranceKind | None:
    """Kind of an utterance that needs no search; None for everything else."""
    text = text.strip().replace("’", "'")
    if len(text) <= LONGEST_SMALL_TALK:
        if kind := _small_talk(text):
            return kind
        if _is_sum(text):
            return "arithmetic"
    lines = [line.strip()[:LONGEST_LINE] for line in text.splitlines() if line.strip()]
    asked = any(line.endswith(("?", "？")) for line in lines[:-1]) and _OF_THE_ANSWER.search(lines[-1])
    ends = {lines[0], lines[0] if asked else lines[-1]} if lines else ()
    return "instruction" if any(pattern.search(line) for line in ends for pattern in _INSTRUCTIONS) else None


def input_kind(value: str | Example) -> UtteranceKind | None:
    """Kind of a question, or of the user's last utterance in a dialogue.

    An acknowledgement behind an utterance of the system may accept an offer: "Yes" then has no kind.
    """
    if not isinstance(value, TurnExample):
        return utterance_kind(value if isinstance(value, str) else value.question)
    if not value.context or value.context[-1].speaker != "USER":
        return None
    kind = utterance_kind(value.context[-1].text)
    return None if kind == "acknowledgement" and len(value.context) > 1 else kind


BY_RULE: frozenset[str] = frozenset(get_args(UtteranceKind))  # reasons of a rule
BY_THRESHOLD = frozenset({"above-threshold", "below-threshold", "always", "never"})  # reasons of a score


def decide_by(
    score: float, threshold: float, kind: UtteranceKind | None, probability: bool = False
) -> tuple[bool, str]:
    """Decision and its reason; a kind of utterance wins over the score.

    ``probability``: of such scores a threshold below 0 always searches, and one from 1 on never does.
    """
    if kind is not None:
        return False, kind
    if probability and not 0 <= threshold < 1:
        return (True, "always") if threshold < 0 else (False, "never")
    return score > threshold, "above-threshold" if score > threshold else "below-threshold"


def within(threshold: float) -> float:
    """A threshold of probabilities, as clients see it and may send it back: 0 where it always searches."""
    return min(max(threshold, 0.0), 1.0)


def _small_talk(text: str) -> UtteranceKind | None:
    """Kind of a message that consists of phrases of small talk; thanks and greetings win over acknowledgements."""
    words = _SEPARATORS.sub(" ", text.lower()).strip()
    kinds, place = set[str](), 0
    while place < len(words):
        match = _PHRASE.match(words, place)
        if match is None or match.end() == place or match.lastgroup is None:
            return None
        kinds.add(match.lastgroup)
        place = match.end() + words.startswith(" ", match.end())
    return next((kind for kind in _SMALL_TALK if kind in kinds), None)


def _is_sum(text: str) -> bool:
    """True for a calculation and nothing else."""
    if (match := _SOLVES.match(text)) and "=" in match["equation"] and _EQUATION.fullmatch(match["equation"]):
        return True
    begin = _ASKS_SUM.match(text)
    rest = text[begin.end() :] if begin else text
    end = _ENDS_SUM.search(rest)
    core = rest[: end.start()] if end else rest
    sure = bool((begin and begin["sure"]) or (end and end["sure"]) or rest.rstrip(" ?？").endswith(("=", "＝")))
    if _AMBIGUOUS.fullmatch(core):
        return sure
    in_chinese = _CHINESE_SUM.fullmatch(core.strip()) and not core.isascii()
    return bool(in_chinese or _SUM.fullmatch(core) or _ROOT.fullmatch(core.strip()))


FEWEST_WORDS = 5
FEWEST_CHARACTERS = 6  # of a Chinese message
_CHINESE = re.compile(f"[{CJK}]")
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_BEGINS = pattern("context_begins")
_PRONOUN = pattern("context_pronoun")
_NAME = re.compile(r"(?<=\w\W)\W*[^\W\d_a-z][\w'’.-]+|\d+|[《「“\"][^》」”\"]{1,200}[》」”\"]")
_ASKS = pattern("context_asks")


def depends_on_context(text: str) -> bool:
    """True for a message that begins as a continuation, has an open pronoun, is short, or has no noun of its own.

    A pronoun behind a name is taken to mean that name. A short question with a name stands on its own.
    """
    if _BEGINS.match(text):
        return True
    # the first one behind the first word; "I" is none
    name = next((match for match in _NAME.finditer(text) if match[0].strip() not in {"I", "I'm", "I’m"}), None)
    pronoun = _PRONOUN.search(text)
    if pronoun is not None and (name is None or pronoun.start() < name.start()):
        return True
    if characters := _CHINESE.findall(text):
        return len(characters) < FEWEST_CHARACTERS and name is None
    words = _WORD.findall(text.lower())
    if LISTS["context"]["nameless"].issuperset(words):
        return True
    return len(words) < FEWEST_WORDS and not (name is not None and _ASKS.match(text))


def is_follow_up(dialogue: Sequence[Utterance]) -> bool:
    """True if the last utterance, the user's, needs an earlier one of the user to be understood."""
    earlier = any(utterance.speaker == "USER" for utterance in dialogue[:-1])
    return earlier and depends_on_context(dialogue[-1].text)


def last_messages(dialogue: Sequence[Utterance], most: int, longest: int) -> str:
    """The last ``most`` messages of the user in one line, small talk skipped; at most ``longest`` characters, or the
    last message alone."""
    *earlier, last = [utterance.text for utterance in dialogue if utterance.speaker == "USER"]
    texts = [text for text in earlier if utterance_kind(text) not in ("greeting", "thanks", "acknowledgement")]
    chosen, size = [last], len(last)
    for text in reversed(texts[-(most - 1) :] if most > 1 else []):
        size += len(text) + 1
        if size > longest:
            break
        chosen.insert(0, text)
    return " ".join(" ".join(text.split()) for text in chosen)
