"""Reference answers as files hold them: empty ones and placeholders are skipped and counted.

A placeholder fills a field where a data set has no answer ("No Answer Present." in MS MARCO, ``<unk>`` in TriviaQA's
test files). As a gold answer it would make every answer wrong. :data:`PLACEHOLDERS` holds only texts that no question
asks for. "None", "NA" (sodium, Namibia) and "Unknown" can be right answers: they are kept, and a warning counts them.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import regex

from kbtrain.answers.grading import is_yes_no
from kbtrain.answers.mask import gold_texts
from kbtrain.answers.missing import PLACEHOLDERS, is_missing, placeholder_key
from kbtrain.answers.names import alternatives
from kbtrain.answers.words import LISTS, is_empty, normalise, text_key
from kbtrain.questions.base import LeftOutAnswers, Loaded
from kbtrain.questions.checks import FirstSeen, leak_key
from kbtrain.records import Gold, Question


def without_placeholders(loaded: Loaded, more: Collection[str] = ()) -> Loaded:
    """The question without empty gold answers and placeholders (``more`` beside :data:`PLACEHOLDERS`), both counted.

    An answer that lists several ("Paris|Lutetia") becomes these (:func:`kbtrain.answers.names.alternatives`).
    An empty list of answers, or one of which nothing is left, makes the question unanswerable (``gold`` "none").
    Multiple choice stays as it is: its answers are letters.
    """
    question = loaded.question
    if question.grading == "option" or question.gold == "none":
        return loaded
    more_keys = {placeholder_key(text) for text in more}
    empty = [answer for answer in question.answers if is_empty(answer)]
    parts = [part for answer in question.answers if answer not in empty for part in alternatives(html.unescape(answer))]
    keys = {answer: placeholder_key(answer) for answer in parts if not is_empty(answer)}
    answers = tuple(answer for answer, key in keys.items() if key not in PLACEHOLDERS | more_keys)
    gold: Gold = "given" if answers else "hidden" if question.gold == "hidden" else "none"
    left_out = LeftOutAnswers(len(empty), len(keys) - len(answers))
    return replace(loaded, question=replace(question, answers=answers, gold=gold), left_out=left_out)


_LEAST_COUNTED = 20  # open questions; fewer can be alike by chance
_MOST_COUNTED = 1_000  # different gold answers that are kept to be counted
_FEW = 5  # different gold answers, which many questions have in common where they are labels
# signs and labels that few answers have: a set whose answers all have one writes something else into that column
_SIGN = regex.compile(
    r"-{2,}|:{2,}|&{2,}|^[*-] |^[A-Za-z]+: |^[A-Z]\. |^\$(?=.*\$$)|<[^<>]*>|\bvs\b"
    r"|[[\p{P}\p{S}]--[.,'\u2019\"\u201c\u201d()%&\p{Sc}\u00b0:/+\u2013\u2014\-\u300a\u300b\u300c\u300d]]+",
    regex.V1,
)


def is_doubtful(answer: str) -> bool:
    """True for a gold answer that may be a placeholder, and may be right: "None", "NA", "nan", "not stated"."""
    return placeholder_key(answer) in LISTS["no_answer"]["doubtful"] or is_missing(answer)


@dataclass
class GoldCounts:
    """Problems of reference answers in a stream of questions.

    ``doubtful``: :func:`is_doubtful` answers by their text. ``duplicates``: questions whose text an earlier one has;
    ``conflicting``: those of them that share no reference answer with it, and ``conflict``, the first such pair of ids.
    """

    empty: int = 0
    placeholders: int = 0
    doubtful: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    conflicting: int = 0
    conflict: tuple[str, str] = ("", "")
    n_open: int = 0
    golds: Counter[str] = field(default_factory=Counter)

    def add(self, question: Question, left_out: LeftOutAnswers, texts: FirstSeen) -> str | None:
        """Count one question; ``texts`` holds the texts of the earlier ones. Returns the id of one in conflict."""
        self.empty += left_out.empty
        self.placeholders += left_out.placeholders
        given = question.answers if question.grading != "option" else ()
        self.doubtful.update(filter(is_doubtful, given))
        if given and not is_yes_no(question):
            self.n_open += 1
            self.golds.update(given[:1] if len(self.golds) < _MOST_COUNTED else ())
        answers = {normalise(text) for text in gold_texts(question)}
        earlier = texts.add(leak_key(question, text_key), "\n".join([question.id, *sorted(answers)]), 0)
        if earlier is None:
            return None
        self.duplicates += 1
        earlier_id, *earlier_answers = earlier[0].split("\n")
        if not (answers and earlier_answers and answers.isdisjoint(earlier_answers)):
            return None
        self.conflicting += 1
        self.conflict = self.conflict if self.conflicting > 1 else (earlier_id, question.id)
        return earlier_id

    def as_dict(self) -> dict[str, object]:
        answers = {"empty_answers": self.empty, "placeholder_answers": self.placeholders}
        questions = {"duplicates": self.duplicates, "conflicting": self.conflicting}
        return {**answers, "doubtful_answers": self.doubtful.total(), **questions}

    def lines(self) -> Iterable[str]:
        """Sentences for people; none where nothing is wrong."""
        if self.empty or self.placeholders:
            yield f"dropped from the reference answers: {self.empty} empty, {self.placeholders} placeholders"
        if self.doubtful:
            texts = ", ".join(f"'{text}' ({n})" for text, n in self.doubtful.most_common(3))
            yield (f"warning: {self.doubtful.total()} reference answers may be placeholders: {texts}; if so, "
                   'skip them: --placeholders "[TEXT, ...]"')  # fmt: skip
        yield from self._suspicious()
        text, (first, second) = f"{self.duplicates} questions repeat the text of another", self.conflict
        if self.conflicting:
            pair = f"(as '{second}' and '{first}')"
            yield f"warning: {text}, {self.conflicting} of them with other reference answers {pair}; keep one of each"
        elif self.duplicates:
            yield text

    def _suspicious(self) -> Iterable[str]:
        """Warnings where most gold answers look like another column, or like several answers in one."""
        if self.n_open < _LEAST_COUNTED:
            return
        if 1 < len(self.golds) <= _FEW:
            labels = " or ".join(sorted({gold.removesuffix(".0") for gold in self.golds}))
            yield f"warning: all reference answers are {labels:.80}; name the column of answers if these are labels"
            return
        signs = Counter(sign for gold in self.golds for sign in set(_SIGN.findall(gold)))
        sign, n = max(signs.items(), key=lambda item: item[1], default=("", 0))
        if n > 0.9 * len(self.golds) >= _LEAST_COUNTED / 2:
            yield (f"warning: {n} of {len(self.golds)} reference answers have '{sign.strip()}' in them; write nothing "
                   "but the answer into a cell, and several as a list")  # fmt: skip
        parted = [gold for gold in self.golds if regex.search(r"\w;\p{Lu}", gold)]
        if len(parted) >= _FEW:
            yield f"warning: {len(parted)} reference answers may be several ('{parted[0]:.40}'); write '; ' there"
        gold, n = self.golds.most_common(1)[0]
        if n > 0.5 * self.n_open:
            yield f"warning: {n} of {self.n_open} questions have the reference answer '{gold:.40}'; check the column"
