"""Entry of the catalogue for a data set, and readers of files and archives built from a loader of one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kbtrain.questions.base import Loaded
from kbtrain.questions.data_sets.columns import Columns
from kbtrain.questions.reading.files import SPLITS, DataFile, data_files
from kbtrain.records import Split


@dataclass(frozen=True)
class Reading:
    """Options for reading a data set. ``columns`` matter for jsonl, csv and datasets only."""

    split: Split | None = None  # of all questions; None: from the files
    only: str | None = None  # of an archive or folder: files whose names match this pattern
    columns: Columns = field(default_factory=Columns)
    subset: str | None = None  # of a Hugging Face data set: its configuration
    dev_share: float = 0.0  # so much of the test questions becomes dev, see :func:`kbtrain.questions.collect.share_of`
    shares: tuple[float, ...] = ()  # train, dev, test: each question's split by a hash of its text, or of its group
    placeholders: tuple[str, ...] = ()  # texts for a missing answer, beside the known ones


Loader = Callable[[Path, Reading], Iterator[Loaded]]


@dataclass(frozen=True)
class DataSet:
    """``load`` streams the questions at a path; the rest is what ``collect.py --list`` shows."""

    load: Loader
    where: str
    licence: str
    keeps: str
    by_columns: bool = False
    download: str = ""  # the publisher's address of one file


def native(
    loader: Callable[[DataFile], Iterator[Loaded]],
    *suffixes: str,
    splits: Mapping[str, Split] = SPLITS,
    leave_out: str = "",
) -> Loader:
    """A loader of one native file as a loader of a file, archive or folder."""

    def load(path: Path, reading: Reading) -> Iterator[Loaded]:
        for file in data_files(
            path, suffixes, only=reading.only, leave_out=leave_out, split=reading.split, splits=splits
        ):
            for loaded in loader(file):
                yield loaded if reading.split is None else in_split(loaded, reading.split)

    return load


def any_table(loader: Callable[[DataFile, Columns], Iterator[Loaded]], *suffixes: str) -> Loader:
    """The same for a loader that takes a column map."""

    def load(path: Path, reading: Reading) -> Iterator[Loaded]:
        for file in data_files(path, suffixes, only=reading.only, split=reading.split):
            for loaded in loader(file, replace(reading.columns, split=reading.split)):
                yield loaded if reading.split is None else in_split(loaded, reading.split)

    return load


def in_split(loaded: Loaded, split: Split) -> Loaded:
    """A question moved to the requested split, against the split of its record (FreshQA has a column)."""
    return replace(loaded, question=replace(loaded.question, split=split))
