"""Output of a loader (a question, the passages that came with it, its position in the file), and entries of the
catalogue: readers of files and archives built from a loader of one file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from kbtrain.questions.files import SPLITS, DataFile, data_files
from kbtrain.questions.rows import SourceRecord, format_value
from kbtrain.records import Gold, Language, Passage, Question, Split

NO_GOLD = "docs/howto/audit.md shows what can be done without reference answers"


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


def ids(passages: Iterable[Passage]) -> tuple[str, ...]:
    """Their ids without repeats, in their order."""
    return tuple(dict.fromkeys(passage.id for passage in passages))


def marked_passages(
    rows: Iterable[SourceRecord], dataset: str, text: str = "text", mark: str = "is_supporting"
) -> tuple[tuple[Passage, ...], tuple[str, ...]]:
    """Passages of objects with a title and the field ``text``, and the ids of those that are marked as gold."""
    passages, gold = [], []
    for row in rows:
        title, content = row.text_or_empty("title"), row.text(text)
        passages.append(context(dataset, *((title, content) if title else titled(content))))
        gold += passages[-1:] if row.has(mark) and row.flag(mark) else []
    return tuple(passages), ids(gold)


def answers_or_hidden(row: SourceRecord) -> tuple[tuple[str, ...], Gold]:
    """The one answer under ``answer``; missing, null or blank means that the data set keeps it to itself.

    A missing field is right for whole files only: :func:`kbtrain.questions.catalogue.load` refuses a file with both.
    """
    answer = row.text_or_empty("answer")
    return (answer,) if "answer" in row.data else (), "given" if answer else "hidden"


def join_sentences(sentences: Iterable[str]) -> str:
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


AnswerAs = Literal["letter", "number", "index", "text"]


@dataclass(frozen=True)
class Columns:
    """Map of the fields to columns. ``answer_as`` is the form of a multiple-choice answer in the file: the option's
    letter, its number from 1, its index from 0, or its text."""

    names: Mapping[str, str | list[str]] = field(default_factory=dict)
    answer_as: AnswerAs = "letter"
    language: Language = "en"
    split: Split | None = None  # of all questions, before any column
    group_by: str | None = None  # column whose value keeps questions in one split
    without_gold: bool = False  # there are no reference answers: none are read


@dataclass(frozen=True)
class Reading:
    """Options for reading a data set. ``columns`` matter for jsonl, csv and datasets only."""

    split: Split | None = None  # of all questions; None: from the files
    only: str | None = None  # of an archive or folder: files whose names match this pattern
    columns: Columns = field(default_factory=Columns)
    subset: str | None = None  # of a Hugging Face data set: its configuration
    shares: tuple[float, ...] = ()  # train, dev, test: each question's split by a hash of its text, or of its group
    placeholders: tuple[str, ...] = ()  # texts for a missing answer, beside the known ones

    @property
    def read_split(self) -> Split | None:
        """The split that all questions are read with; any where shares make the splits: no column is asked for it."""
        return self.split or ("test" if self.shares else None)


Loader = Callable[[Path, Reading], Iterator[Loaded]]


def native(
    loader: Callable[..., Iterator[Loaded]],
    *suffixes: str,
    splits: Mapping[str, Split] = SPLITS,
    leave_out: str = "",
    by_columns: bool = False,
) -> Loader:
    """A loader of one native file, and ``by_columns`` of a map of columns, as a loader of a file, archive or folder."""

    def load(path: Path, reading: Reading) -> Iterator[Loaded]:
        split, only = reading.read_split, reading.only
        of_columns = (replace(reading.columns, split=split),) if by_columns else ()
        for file in data_files(path, suffixes, only=only, leave_out=leave_out, split=split, splits=splits):
            for loaded in loader(file, *of_columns):
                yield loaded if reading.split is None else in_split(loaded, reading.split)

    return load


def in_split(loaded: Loaded, split: Split) -> Loaded:
    """A question moved to the requested split, against the split of its record (FreshQA has a column)."""
    return replace(loaded, question=replace(loaded.question, split=split))
