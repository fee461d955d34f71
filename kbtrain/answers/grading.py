"""Grading of answers: the only place that decides what "correct" means, for labels and for end-to-end scores.

Three rules (KBM, section 4.2): ``exact`` (NaturalQuestions, TriviaQA), ``contains`` (the rest), ``option`` (multiple
choice). Texts are compared after :func:`normalise`. Exact match and token F1 of short answers, as HotpotQA and SQuAD
report them, use the same normalisation.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping

from kbtrain.errors import UserError
from kbtrain.records import Question

Verdicts = Mapping[str, bool | None]  # normalised answer -> what a judge said of it; None: it abstained

NORMALISATION = "nfkc-casefold-punctuation-articles-spaces/1"
_ARTICLES = {"a", "an", "the"}
CJK = r"\u3400-\u9fff\uf900-\ufaff"  # ranges of a regular expression's class: Chinese characters
_CJK = re.compile(rf"([{CJK}])")
_LETTER_FIRST = re.compile(r"^\W*([A-J])(?:\s*[.):,;\-]|\s*$|\s*\n)")
_LETTER_NAMED = re.compile(r"\b(?:answer|option|choice)\s*(?:is|:)?\s*\(?([A-J])\b(?!\s+\w)", re.IGNORECASE)


def normalise(text: str) -> str:
    """NFKC (full to half width), case folded, punctuation and symbols to spaces, articles dropped, spaces folded.

    Chinese characters become words of their own, so that "contains" is over characters there. A text that would
    vanish (gold "A", "The The") is kept whole: an empty gold answer would match everything.
    """
    text = unicodedata.normalize("NFKC", text).casefold()
    text = _CJK.sub(r" \1 ", text)
    text = re.sub(r"(?<=\d)[,'](?=\d{3})", "", text)  # 1,000 and 1'000 are 1000
    kept = (c if unicodedata.category(c)[0] in "LNM" or _decimal_point(text, i) else " " for i, c in enumerate(text))
    words = "".join(kept).split()
    # an article stands before a word: the last word is none ("Vitamin A")
    without = [word for i, word in enumerate(words) if word not in _ARTICLES or i == len(words) - 1]
    return " ".join(without or words) or text.strip()


def _decimal_point(text: str, i: int) -> bool:
    inside = 0 < i < len(text) - 1
    return text[i] == "." and inside and text[i - 1].isdecimal() and text[i + 1].isdecimal()


def contains(answer: str, gold: str) -> bool:
    """True if the gold answer's words occur in the answer in a row: "10" is not in "1066"."""
    needle, hay = normalise(gold), normalise(answer)
    return bool(needle) and f" {needle} " in f" {hay} "


def option_letter(answer: str, options: tuple[str, ...]) -> str | None:
    """The option an answer names: "B", "B. Paris", "(b)", "the answer is B", or the text of one option; else None."""
    letters = [chr(65 + i) for i in range(len(options))]
    stripped = answer.strip()
    if len(stripped) == 1 and stripped.upper() in letters:
        return stripped.upper()
    by_text = [letter for letter, option in zip(letters, options, strict=True) if _same(stripped, letter, option)]
    if len(by_text) == 1:
        return by_text[0]
    found = _LETTER_FIRST.match(stripped) or _LETTER_NAMED.search(stripped)
    letter = found.group(1).upper() if found else None
    return letter if letter in letters else None


def _same(answer: str, letter: str, option: str) -> bool:
    return normalise(answer) in {normalise(option), normalise(f"{letter} {option}")}


def is_correct(question: Question, answer: str) -> bool:
    """Grade one answer by the question's own rule."""
    if question.grading == "option":
        return option_letter(answer, question.options) in question.answers
    if question.grading == "exact":
        return normalise(answer) in {normalise(gold) for gold in question.answers}
    return any(contains(answer, gold) for gold in question.answers)


def graded(question: Question, answer: str, verdicts: Verdicts | None = None) -> bool | None:
    """Verdict on an answer, by the question's own rule or by a judge's verdicts.

    None where the judge abstained. An empty answer is wrong and is put before no judge. Raises :class:`UserError` for
    an answer without a verdict.
    """
    if verdicts is None:
        return is_correct(question, answer)
    if is_empty(answer):
        return False
    key = normalise(answer)
    if key not in verdicts:
        raise UserError(
            f"question '{question.id}': no verdict on the answer {answer!r:.60}; run data_gen/judge.py again"
        )
    return verdicts[key]


def group_key(question: Question, answer: str) -> str:
    """Answers with the same key count as the same answer for certainty (KBM, equation 1)."""
    if question.grading == "option":
        return option_letter(answer, question.options) or normalise(answer)
    return normalise(answer)


def is_empty(answer: str) -> bool:
    """An answer that says nothing; counted in the labels, never dropped."""
    return not answer.strip()


_CLOSED = {"yes", "no", "noanswer"}  # HotpotQA: such an answer is right or wrong, never partly right


def exact_match(answer: str, golds: Iterable[str]) -> float:
    """1 if the answer is one of the accepted ones after normalisation, else 0."""
    return float(normalise(answer) in {normalise(gold) for gold in golds})


def token_f1(answer: str, golds: Iterable[str]) -> float:
    """The best F1 over the accepted answers, of words (Chinese: characters) with repeats."""
    return max((_f1(normalise(answer), normalise(gold)) for gold in golds), default=0.0)


def _f1(answer: str, gold: str) -> float:
    if answer != gold and (answer in _CLOSED or gold in _CLOSED):
        return 0.0
    said, wanted = answer.split(), gold.split()
    common = sum((Counter(said) & Counter(wanted)).values())
    return 2 * common / (len(said) + len(wanted)) if common else 0.0
