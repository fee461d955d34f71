"""Output of a loader: a question, the passages that came with it, and its position in the file.

Also option letters of multiple choice, and files with one column per option.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.rows import SourceRecord, format_value
from kbtrain.records import Gold, Passage, Question


@dataclass(frozen=True)
class LeftOutAnswers:
    """Numbers of gold answers of one question that were skipped."""

    empty: int = 0
    placeholders: int = 0


@dataclass(frozen=True)
class Loaded:
    """A question with its own passages; ``line`` of ``file`` is where its record begins."""

    question: Question
    file: str
    line: int
    passages: tuple[Passage, ...] = ()
    group: str = ""  # questions of one group go into one split together
    left_out: LeftOutAnswers = LeftOutAnswers()

    @property
    def lost_answers(self) -> bool:
        """True if the record has gold answers, but all of them are empty or placeholders."""
        return self.question.gold == "none" and self.left_out != LeftOutAnswers()


def load_row(
    row: SourceRecord, file: DataFile, dataset: str, passages: tuple[Passage, ...] = (), **fields: Any
) -> Loaded:
    """The question of a row with its passages; multiple choice where ``fields`` have options."""
    form = {"form": "choice", "grading": "option"} if "options" in fields else {}
    facts = {"split": file.split, "dataset": dataset, "context_passages": ids(passages), **form, **fields}
    return Loaded(Question(**facts), row.file, row.line, passages)


def context(dataset: str, title: str, text: str) -> Passage:
    """A passage whose id is the hash of its title and text: the same one in many questions is one passage."""
    digest = hashlib.sha256(f"{title}\0{text}".encode()).hexdigest()[:20]
    return Passage(f"{dataset}:{digest}", title, text)


def ids(passages: tuple[Passage, ...]) -> tuple[str, ...]:
    """Their ids without repeats, in their order."""
    return tuple(dict.fromkeys(passage.id for passage in passages))


def answers_or_hidden(row: SourceRecord) -> tuple[tuple[str, ...], Gold]:
    """The one answer under ``answer``; missing, null or blank means that the data set keeps it to itself.

    A missing field is right for whole files only: :func:`kbtrain.questions.load.load` refuses a file with both.
    """
    answer = row.text_or_empty("answer")
    if answer:
        return (answer,), "given"
    return ("",) if "answer" in row.data else (), "hidden"


def join_sentences(sentences: tuple[str, ...]) -> str:
    """Sentences as one text, with or without spaces of their own."""
    return " ".join(sentence.strip() for sentence in sentences if sentence.strip())


def titled(contents: str) -> tuple[str, str]:
    """Title and text of a passage whose first line is its title in double quotes; else no title and all of it."""
    first, _, text = contents.partition("\n")
    title = first.strip()
    if len(title) > 2 and title[0] == title[-1] == '"' and text.strip():
        return title[1:-1].replace('""', '"'), text
    return "", contents


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def letter(row: SourceRecord, key: str, n_options: int) -> str:
    """The letter under ``key``, of an option that there is."""
    value = row.text(key).upper()
    valid = LETTERS[:n_options]
    if len(value) != 1 or value not in valid:
        raise row.error(key, f"expected one of {', '.join(valid)}, found {format_value(value)}")
    return value


def letters_of(row: SourceRecord, key: str, options: Sequence[str]) -> tuple[str, ...]:
    """The letters of the options that read like the text under ``key`` (two may, then both are right)."""
    text = row.text(key)
    letters = tuple(LETTERS[i] for i, option in enumerate(options[: len(LETTERS)]) if option == text)
    if not letters:
        raise row.error(key, f"{format_value(text)} is not one of the options")
    return letters
