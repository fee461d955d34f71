"""Answers that state no answer, in English and Chinese: "It is not mentioned in the documents.", 未提及."""

from __future__ import annotations

import itertools
import re
import unicodedata
from itertools import pairwise

from kbtrain.answers.words import LISTS, is_empty, read_data
from kbtrain.answers.writing import CJK

PLACEHOLDERS = LISTS["no_answer"]["placeholders"]  # by :func:`placeholder_key`
_WHOLE, _SAYING = LISTS["no_answer"]["whole"], LISTS["no_answer"]["saying"]
_PATTERNS = read_data("missing.toml")


def _one_of(language: str) -> re.Pattern[str]:
    text = "|".join(f"(?:{form})" for form in _PATTERNS["silent"][language])
    for name, part in _PATTERNS["parts"].items():
        text = text.replace(f"<{name}>", part)
    return re.compile(re.sub(r"\n\s*", "", text), re.IGNORECASE)


_ENGLISH, _CHINESE, _ELSEWHERE = map(_one_of, ("english", "chinese", "others"))
_CLAUSE = re.compile(r"[.,;:!?()。，；：！？（）\n\u2026]+")
_LEAD = re.compile(  # words that introduce an answer
    r"^\W*(?:(?:so|thus|therefore|hence|sorry|well)\b\W*)?"
    r"(?:(?:the|my|a|an)\s+)?(?:(?:final|correct|short|best|only|right)\s+)?(?:answer|ans|response|a(?=\s*:))\b"
    r"(?:\s+(?:to|for)\b[^.:\n]{0,80}?(?=\s+is\b|\s*:))?"
    r"(?:\s*(?:is|would be|must be|remains)\b)?\s*[:=\-]?\s*(?=\S)"
    r"|^\W*(?:最终|正确|所以|因此)*(?:的)?(?:答案|回答|答)\s*(?:应该|应当)?(?:是|为)?\s*[:：]?\s*(?=\S)",
    re.IGNORECASE,
)
_TITLE = re.compile(r"[《〈][^《》〈〉]*[》〉]")
_QUOTED = re.compile(r"[\"“][^\"“”]*[\"”]")
_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
_PLAIN = 3  # words of a clause up to which it states nothing by itself
_OPENING = re.compile(
    r"(?:according|based|as|from|in|on|by|however|unfortunately|sorry|therefore|thus|so|hence|because|since|for|with|"
    r"regarding|given|if|although|though|but|and|also|currently|without)\b|根据|因此|所以|因为|由于|但|抱歉|对不起",
    re.IGNORECASE,
)

# Answers that are given beside a disclaimer: "I don't know, but I think it is Paris", "不确定，应该是巴黎".
_GUESS_CLAUSE = re.compile(
    r"[.,;:!()\n\u2026。，；：！（）]+|[\u2013\u2014]|\s-+\s|(?=\b(?:but|however|though|although)\b)|(?<=.)(?=但)",
    re.IGNORECASE,
)
_BEFORE_GUESS = (
    r"(?:(?:but|however|though|although|yet|still|so|well|and|personally|if i (?:had|have) to guess)\b[\s,]*)*"
)
_IT = r"(?:it|this|that|he|she|they|the \w+|its \w+|his \w+|her \w+|their \w+)"
_PERHAPS = r"(?:(?:most|very|quite) )?(?:likely|probably|possibly|perhaps|maybe|presumably)"
_GIVES_NOTHING = (  # behind "I think", "perhaps", "it may be": no answer to what was asked
    r"(?:so|not|no|later|yes|you|we|i|someone|somebody|something|others?|another|because|due|since|try|more|further|ask"
    r"|check|look|search|consult|see|if|mentioned|found|stated|given|available|possible|helpful|useful|worth|able|better"
    r"|best|important|necessary|different|interpreted|considered|understood|noted|read|used|seen|assumed|that depends"
    r"|it depends|it varies|in (?:(?:the )?(?:text|document|passage|article)|another|other)\w*"
    r"|(?:it|this|that|both|either)$)\b"
)
_GUESS = re.compile(
    rf"^{_BEFORE_GUESS}(?:"
    r"(?:i|we)(?:'d| would| will|'ll| can only| could| might| do)? (?:(?:really|only|just|still|personally|strongly) )?"
    r"(?:think|believe|guess|suspect|assume|suppose|presume|reckon|say|venture|bet|imagine|go with)(?: that)?"
    r"|(?:my|the|our|one|a) (?:(?:best|first|only|educated|wild|likely|personal) )*"
    r"(?:guess|bet|hunch|assumption|candidate) (?:is|was|would be|might be|may be|could be)(?: that)?"
    rf"|(?:{_IT} (?:(?:is|was|are|were) )?)?{_PERHAPS}"
    rf"|{_IT} (?:might|may|could|must|should|would) (?:well )?(?:be|have been)"
    rf"|{_IT} (?:is|was|are|were) (?:widely |generally |often )?(?:believed|thought|said|assumed|presumed) to"
    r" (?:be|have been)"
    r"|(?:from|to|based on|according to|going by) (?:my|what i|our) \w+(?: knowledge)? (?=it|he|she|they|the|this)"
    rf")\s+(?:{_PERHAPS} )?(?!{_GIVES_NOTHING})(?=\w)",
    re.IGNORECASE,
)
_OWN_DOUBT = re.compile(  # of the one who answers; not of documents or of science
    r"^(?:well |sorry |honestly |unfortunately )*(?:i|we)\b"
    r"|^(?:not (?:\w+ )?(?:sure|certain)|unsure|no idea|dunno|don't know)\b",
    re.IGNORECASE,
)
_STATED = re.compile(
    r"^(?:but|however)\b\s*(?:(?:it|this|that|he|she|they|the answer) (?:is|was|are|were|'s) "
    r"(?!(?:apparent|clear|possible|important|worth|also|that|not)\b)(?=\w)|(?!I\b)(?=[A-Z0-9]\w*(?: \w+){0,3}$))"
)
_UNSURE = re.compile(  # behind an answer
    r"^(?:(?:but|however|though|although) )?(?:i am|i'm|we are|we're|i)(?: not|n't)"
    r"(?: (?:\d+ ?%?|entirely|completely|totally|absolutely|fully|quite|really|very|so|too))* (?:sure|certain|positive)"
    r"(?: (?:about|of) (?:this|that|it))?$|^(?:but|though|although) (?:not (?:\w+ )?(?:sure|certain)|unsure)$",
    re.IGNORECASE,
)
_SORRY = re.compile(
    r"^(?:(?:very |so )?sorry|unfortunately|apologies|(?:很)?抱歉|对不起|不好意思)\b|^(?:i|we)\b", re.IGNORECASE
)
_JOINED = re.compile(r"^(?:but|however|though|although)\b", re.IGNORECASE)

_NO = r"(?!不|没|无|未|有人|别人|您|你)"
_GUESS_ZH = re.compile(
    r"^(?:但是?|不过|然而|可是|只是|如果要猜的?话?|硬要说的?话?)*"
    r"(?:(?:我|我们|个人|笔者)?(?:觉得|认为|猜测?|想|估计|推测|相信|记得)(?:答案|它|他|她|这|应该|可能|大概|也许)*"
    rf"|(?:答案|它|他|她|这)?(?:应该|应当|可能|也许|或许|大概|大约|多半|很可能|恐怕|似乎))(?:就?是|为|在|叫|指的?是)?{_NO}(?=\S)"
)
_OWN_DOUBT_ZH = re.compile(r"^(?:抱歉|对不起)?(?:我|不(?:太)?(?:确定|知道|清楚|晓得))")
_STATED_ZH = re.compile(rf"^(?:但是?|不过)(?:答案|它|他|她|这)?(?:就?是|为){_NO}(?=\S)")
_UNSURE_ZH = re.compile(r"^(?:但|不过|但是)(?:我)?(?:并)?不(?:太|完全|能|敢|十分|是很)?(?:确定|肯定)$")


def placeholder_key(text: str) -> str:
    """A text as :data:`PLACEHOLDERS` has it."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'").split()).rstrip(".")


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
    match = _ENGLISH.search(clause)
    return (match and not _in_title(clause, match)) or bool(_CHINESE.search(clause) or _ELSEWHERE.search(clause))


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
    if any(not _says_no(part) and "?" not in part and _guesses(part) for part in clauses):
        return True
    return any(
        (_says_no(clause) and not _says_no(behind) and _stated(clause, behind))
        or (not _says_no(clause) and _doubted(clause, behind))
        for clause, behind in pairwise(clauses)
    )


def _guesses(clause: str) -> bool:
    return (_GUESS.search(clause) or _GUESS_ZH.search(clause)) is not None


def _stated(doubt: str, behind: str) -> bool:
    """True for "I don't know" and "but it is Paris"."""
    english = _OWN_DOUBT.search(doubt) and _STATED.search(behind)
    return bool(english or (_OWN_DOUBT_ZH.search(doubt) and _STATED_ZH.search(behind)))


def _doubted(statement: str, doubt: str) -> bool:
    """True for "Paris" and "but I am not sure"; not for "Ann Lee?" and "I am not sure"."""
    joined = _JOINED.match(doubt) and _UNSURE.search(doubt)
    return "?" not in statement and bool(joined or _UNSURE_ZH.search(doubt)) and not _SORRY.match(statement)
