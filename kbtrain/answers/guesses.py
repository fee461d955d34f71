"""Answers that are given beside a disclaimer: "I don't know, but I think it is Paris", "不确定，应该是巴黎"."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

_CLAUSE = re.compile(
    r"[.,;:!()\n\u2026。，；：！（）]+|[\u2013\u2014]|\s-+\s|(?=\b(?:but|however|though|although)\b)|(?<=.)(?=但)",
    re.IGNORECASE,
)
_LEAD = r"(?:(?:but|however|though|although|yet|still|so|well|and|personally|if i (?:had|have) to guess)\b[\s,]*)*"
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
    rf"^{_LEAD}(?:"
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


def is_given(text: str, silent: Callable[[str], bool]) -> bool:
    """True if a text with a disclaimer in it gives an answer all the same: as a guess, after "but", or before it.

    ``silent``: of a clause, whether it says that something is not known. What is not known to documents or to science
    stays so unless a guess follows: "The architect is not known, but it was built in 1820" answers nothing.
    """
    clauses = [" ".join(part.split()) for part in _CLAUSE.split(text)]
    clauses = [part for part in clauses if re.search(r"\w", part)]
    if any(not silent(part) and "?" not in part and _guesses(part) for part in clauses):
        return True
    return any(
        (silent(clause) and not silent(behind) and _stated(clause, behind))
        or (not silent(clause) and _doubted(clause, behind))
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
