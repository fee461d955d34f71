"""Answers that say that they know none, in English and Chinese: "It is not mentioned in the documents.", 未提及."""

from __future__ import annotations

import re
import unicodedata

from kbtrain.answers.grading import normalise

_WHOLE = {"unknown", "unclear", "none", "n a", "na", "nil", "null"}  # alone; within a text they may be a name's

_STATED = "mentioned|specified|stated|given|provided|available|known|clear|listed|included|found|certain|sure"
_TOLD = "mention|specify|state|say|provide|include|contain|give|tell|indicate"
_ENGLISH = re.compile(
    rf"^not (?:yet |explicitly )?(?:{_STATED})\b"
    r"|\b(?:is|are|was|were|am|be|been|has|have)(?: not| n t| currently not| still not)(?: yet| explicitly| been)* "
    rf"(?:{_STATED})\b(?! (?:as|for)\b)"  # "not known as Rome" tells what it is not
    rf"|\b(?:isn|aren|wasn|weren|hasn|haven) t (?:yet |explicitly |been )*(?:{_STATED})\b"
    r"|\b(?:is|are|was|were|remains?|being)(?: still| currently| yet)? (?:unknown|unclear|unanswerable|uncertain)$"
    r"|\b(?:is|are|was|were|remains?)(?: still| currently)? (?:unknown|unclear)"
    r" (?:in|from|to|at|based|according|because|since|as|who|whose|what|when|where|which|why|how|whether|if)\b"
    rf"|\b(?:do|does|did|don|doesn|didn)(?: not| t) (?:explicitly |know$|(?:{_TOLD})\b)"
    r"|\b(?:do|don|does|doesn)(?: not| t) (?:actually )?know\b|\bnot know\b"
    r"|\b(?:can|could)\s?(?:not| t|n t) be (?:determined|answered|found|known|inferred)\b"
    r"|\b(?:can|could)\s?(?:not| t) (?:determine|answer|find|tell)\b"
    r"|\b(?:no|not enough|insufficient) (?:answer|information|mention|evidence)\b|^unanswerable\b"
    r"|\b(?:none|neither) of (?:these |those )?(?:given |provided )?(?:documents|passages|texts|sources|articles)\b"
)
_CHINESE = re.compile(
    r"(?:^|答案|是|为|仍|尚|均|都|还|目前)未知(?:的)?$|不知道|不清楚|不详$|(?:并未|未|没有|没)(?:明确)?(?:被)?"
    r"(?:提及|提到|说明|提供|给出|指出|写明|涉及)|(?:无法|不能)(?:确定|回答|得知|判断|知道|得出)|(?:没有|无)(?:答案|相关信息|足够(?:的)?信息)"
    r"|不确定$|信息不足"
)
_CLAUSE = re.compile(r"[.,;:!?()。，；：！？（）\n]+")


def is_missing(answer: str) -> bool:
    """True for an empty answer and for one that says that it is not known.

    Whole words and forms of a sentence decide: a name that holds such a word ("The Unknown Soldier") is an answer.
    """
    text = unicodedata.normalize("NFKC", answer)
    clauses = [clause for clause in _CLAUSE.split(text) if clause.strip()]
    keys = [normalise(clause) for clause in clauses]
    if not text.strip(" .\"'“”") or not keys:
        return True
    if keys[0] in _WHOLE or normalise(text) in _WHOLE:
        return True
    return any(_ENGLISH.search(key) for key in keys) or any(_CHINESE.search(clause.strip()) for clause in clauses)
