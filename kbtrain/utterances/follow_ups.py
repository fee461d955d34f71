"""Messages that depend on the turns before them, and the last messages of a user as one text to search for.

The test is cheap and errs towards "depends": a message that is taken for a follow-up costs a longer search text, or one
short request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kbtrain.answers.chinese import CJK
from kbtrain.records import Utterance
from kbtrain.utterances.kinds import utterance_kind

FEWEST_WORDS = 5
FEWEST_CHARACTERS = 6  # of a Chinese message
_CHINESE = re.compile(f"[{CJK}]")
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_BEGINS = re.compile(
    r"^\W*(?:(?:ok|okay|yes|no|thanks|hm+|ah|oh|well|sure|great)\b\W*)*"
    r"(?:(?:and|but|or|so|then|also|plus|what about|how about|what else|why not|why so|how so|how come)\b|"
    r"那|还有|然后|另外|而且|但是?|所以|其中|为什么呢|怎么说)",
    re.IGNORECASE,
)
_PRONOUN = re.compile(
    r"\b(?:it|its|they|them|their|theirs|he|him|his|she|her|hers|these|those|this|ones|the (?:same|other|others|former|"
    r"latter|first|second|third|last|next) (?:one|two|ones)|the (?:same|former|latter|others?))\b"
    r"|\bthat\b(?=\W*$|\s+(?:is|was|one|too|as well|mean|work|apply|cost|happen|again|country|city|person|case)\b)"
    r"|\bthere\b(?=\W*$)|[它他她]们?|这个?|那个|其|该|此|前者|后者|上述",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?<=\w\W)\W*[^\W\d_a-z][\w'’.-]+|\d+|[《「“\"][^》」”\"]+[》」”\"]")
_ASKS = re.compile(
    r"^\W*(?:who|whom|whose|what|which|when|where|why|how|is|are|was|were|do|does|did|can)\b", re.IGNORECASE
)
_FUNCTION_WORDS = frozenset(
    "a an the and or but so then also of in on at to for from by with about as than is are was were be been being "
    "am do does did done have has had can could will would shall should may might must not no yes ok okay please "
    "i me my you your we us our what which who whom whose when where why how many much more most other else too "
    "very just only really again now today still any some all each every there here if because like mean explain "
    "tell show give say go work thing things way first second third one two three ones that".split()
)


def depends_on_context(text: str) -> bool:
    """True for a message that begins as a continuation, has an open pronoun, is short, or has no noun of its own.

    A pronoun behind a name is taken to mean that name. A short question with a name stands on its own.
    """
    if _BEGINS.match(text):
        return True
    name = _name_of(text)
    pronoun = _PRONOUN.search(text)
    if pronoun is not None and (name is None or pronoun.start() < name.start()):
        return True
    if _CHINESE.search(text):
        return len(_CHINESE.findall(text)) < FEWEST_CHARACTERS and name is None
    words = _WORD.findall(text.lower())
    if all(word in _FUNCTION_WORDS for word in words):
        return True
    return len(words) < FEWEST_WORDS and not (name is not None and _ASKS.match(text))


def _name_of(text: str) -> re.Match[str] | None:
    """The first name behind the first word; "I" does not count."""
    return next((match for match in _NAME.finditer(text) if match[0].strip() not in {"I", "I'm", "I’m"}), None)


def is_follow_up(dialogue: Sequence[Utterance]) -> bool:
    """True if the last utterance, the user's, needs an earlier one of the user to be understood."""
    earlier = any(utterance.speaker == "USER" for utterance in dialogue[:-1])
    return earlier and depends_on_context(dialogue[-1].text)


def last_messages(dialogue: Sequence[Utterance], most: int, longest: int) -> str:
    """The last ``most`` messages of the user in one line, small talk skipped; at most ``longest`` characters, or the
    last message alone.
    """
    *earlier, last = [utterance.text for utterance in dialogue if utterance.speaker == "USER"]
    texts = [text for text in earlier if utterance_kind(text) not in ("greeting", "thanks", "acknowledgement")]
    chosen, size = [last], len(last)
    for text in reversed(texts[-(most - 1) :] if most > 1 else []):
        size += len(text) + 1
        if size > longest:
            break
        chosen.insert(0, text)
    return " ".join(" ".join(text.split()) for text in chosen)
