"""Evidence without the answer: what a model still says then comes from itself (KBM, figure 2)."""

from __future__ import annotations

import functools
import re

from kbtrain.records import Question

MASK = "MASK"
_CJK = r"\u3400-\u9fff\uf900-\ufaff"


def mask_answers(text: str, question: Question) -> str:
    """``text`` with every gold answer replaced by ``MASK``: all aliases, any case, whole words.

    For multiple choice the text of the gold option is masked. Longer aliases go first, so that "US dollar" leaves no
    "MASK dollar". Chinese has no word boundaries: there an alias is masked wherever it stands.
    """
    gold = gold_texts(question)
    return _pattern(gold).sub(MASK, text) if gold else text


def gold_texts(question: Question) -> tuple[str, ...]:
    """The gold answers as texts, longest first."""
    texts = question.answers
    if question.grading == "option":
        texts = tuple(question.options[ord(letter) - 65] for letter in question.answers)
    return tuple(sorted({text.strip() for text in texts if text.strip()}, key=lambda text: (-len(text), text)))


@functools.lru_cache(maxsize=1024)
def _pattern(gold: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(_whole_words(text) for text in gold), re.IGNORECASE)


def _whole_words(text: str) -> str:
    before = r"(?<![^\W%s])" % _CJK if re.match(r"[^\W%s]" % _CJK, text) else ""  # noqa: UP031
    after = r"(?![^\W%s])" % _CJK if re.search(r"[^\W%s]$" % _CJK, text) else ""  # noqa: UP031
    return before + r"\s+".join(re.escape(word) for word in text.split()) + after
