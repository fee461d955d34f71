"""Checks of ``questions.jsonl`` while it streams, for every stage that reads it; leaks and near duplicates.

A leak is a training question that is also in dev or test: a gate must not be trained on what it is judged by. Near
duplicates are paraphrases and typing variants in different splits, which a gate would recognise.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kbtrain.answers.grading import is_empty
from kbtrain.answers.words import normalise
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.prompts.kbm import query_text
from kbtrain.records import Question, Split


class FirstSeen(dict[str, tuple[str, int]]):
    """A map from keys to the (id, line) of their first appearance."""

    def add(self, key: str, name: str, line: int) -> tuple[str, int] | None:
        """Remember a key; returns (id, line) of its first appearance if this is not the first."""
        earlier = self.get(key)
        self.setdefault(key, (name, line))
        return earlier


def read_questions(path: Path | str) -> Iterator[tuple[int, Question]]:
    """Stream (line number, question) of a file in kbtrain's format, as :func:`check_question` has it."""
    ids = FirstSeen()
    for number, question in jsonl.read_numbered(Question, path):
        check_question(question, str(path), number, ids)
        yield number, question


def check_question(question: Question, file: str, line: int, ids: FirstSeen) -> None:
    """Raise :class:`UserError` naming file, line and field for a duplicate of ``ids``, or :func:`problem_of` it."""
    if (problem := problem_of(question)) is not None:
        raise UserError(f"{at(file, line, problem[0])}: {problem[1]}")
    if (earlier := ids.add(question.id, file, line)) is not None:
        place = f"line {earlier[1]}" + (f" of {earlier[0]}" if earlier[0] != file else "")
        raise UserError(f"{at(file, line, 'id')}: duplicate {question.id!r}, first in {place}")


def problem_of(question: Question) -> tuple[str, str] | None:
    """(field, problem) of a question that could not be asked or graded; None if it is sound.

    No answer at all is right where ``gold`` allows it; an answer of multiple choice is an option's letter.
    """
    if not question.id.strip():
        return "id", "empty"
    if not question.id.isprintable():  # nor could scores name it
        return "id", f"line ends or control characters in {question.id!r:.60}"
    if is_empty(question.text):
        return "text", "empty"
    if not question.answers and question.gold == "given":
        return "answers", "no answer; give at least one"
    if question.answers and question.gold != "given":
        return "answers", f"there is one, but gold is '{question.gold}'"
    if any(map(is_empty, question.answers)):
        return "answers", "an answer is empty; delete it or fill it in"
    if question.form == "choice" and len(question.options) < 2:
        return "options", f"multiple choice with {len(question.options)} option(s); give two or more"
    if len(question.options) > 26:
        return "options", f"{len(question.options)} options, but letters reach from A to Z"
    if question.grading == "option":
        letters = [chr(65 + i) for i in range(len(question.options))]
        valid = ", ".join(letters) or "none, there are no options"
        for answer in question.answers:
            if answer not in letters:
                return "answers", f"'{answer}' is not an option's letter (valid: {valid})"
    return None


@dataclass(frozen=True)
class Leak:
    """A training question and the dev or test question with the same normalised text, each with its line; or a dev
    question (``split``) and the test question."""

    id: str
    line: int
    other_id: str
    other_line: int
    split: Split = "train"


def leak_key(question: Question, key: Callable[[str], str] = normalise) -> str:
    """Key by which a question is known in another split: the text's ``key`` and, in any order, those of the options."""
    return asked_key(question.text, question.options, key)


def asked_key(text: str, options: Iterable[str], key: Callable[[str], str] = normalise) -> str:
    """As :func:`leak_key`, of a question's parts."""
    return "\n".join([key(text), *sorted(map(key, options))])


def find_leaks(path: Path | str) -> Iterator[Leak]:
    """Every leak in a questions file, in its order: training questions in dev or test, and dev questions in test."""
    held_out, test = FirstSeen(), FirstSeen()
    for line, question in read_questions(path):
        if question.split != "train":
            held_out.add(leak_key(question), question.id, line)
        if question.split == "test":
            test.add(leak_key(question), question.id, line)
    for line, question in jsonl.read_numbered(Question, path):  # checked a moment ago
        if question.split == "test":
            continue
        first = (held_out if question.split == "train" else test).get(leak_key(question))
        if first is not None:
            yield Leak(question.id, line, *first, question.split)


def refuse_leaks(path: Path | str) -> None:
    """Raise :class:`UserError` for the first leak, naming both questions and their lines."""
    for leak in find_leaks(path):
        kind, splits = ("training", "dev or test") if leak.split == "train" else ("dev", "test")
        twin = f"is also in {splits} as '{leak.other_id}' (line {leak.other_line})"
        place = at(path, leak.line)
        raise UserError(f"{place}: {kind} question '{leak.id}' {twin}; delete one of them or set on_leak: drop")


ALIKE = 0.85  # cosine from which two questions count as nearly the same
MOST_COMPARED = 20_000  # questions: time grows with the product of the splits
_BLOCK = 512  # rows of cosines in memory at once


@dataclass(frozen=True)
class NearPair:
    """A question of ``split`` and the one of a later split that is most alike; ``cosine`` 0 to 1."""

    id: str
    split: Split
    other_id: str
    other_split: Split
    cosine: float


def near_duplicates(questions: Sequence[Question]) -> list[NearPair]:
    """Of each pair of splits the questions of the earlier one with a near duplicate in the later one, and the most
    similar there: cosine of character n-grams weighted by their rarity (TF-IDF), so that questions of one pattern about
    two things are far apart. Exact repeats are counted, however short."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    vectorizer.fit(query_text(q) for q in questions)
    pairs = []
    splits: tuple[Split, ...] = ("train", "dev", "test")
    for split, other_split in itertools.combinations(splits, 2):
        earlier, against = ([q for q in questions if q.split == name] for name in (split, other_split))
        if not earlier or not against:
            continue
        repeats = {leak_key(q): q for q in reversed(against)}
        columns = vectorizer.transform([query_text(q) for q in against]).T.tocsc()
        for start in range(0, len(earlier), _BLOCK):
            block = earlier[start : start + _BLOCK]
            cosines = (vectorizer.transform([query_text(q) for q in block]) @ columns).toarray()
            for question, place, row in zip(block, cosines.argmax(axis=1), cosines, strict=True):
                twin = repeats.get(leak_key(question))
                cosine = float(row[place]) if twin is None else 1.0
                if cosine >= ALIKE:
                    twin = twin or against[place]
                    pairs.append(NearPair(question.id, split, twin.id, twin.split, cosine))
    return pairs


def check_near(path: Path, splits: Counter[str]) -> list[NearPair] | None:
    """Near duplicates in a file of collected questions, ``splits`` counted; None for too many questions to compare."""
    if len(+splits) < 2:
        return []
    return None if splits.total() > MOST_COMPARED else near_duplicates(list(jsonl.read(Question, path)))
