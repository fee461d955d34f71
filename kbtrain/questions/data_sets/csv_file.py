"""Questions from any table in CSV or TSV, by a map of its columns."""

from __future__ import annotations

from collections.abc import Iterator

from kbtrain.questions.base import Loaded
from kbtrain.questions.data_sets.columns import Columns, mapped
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.tables import csv_rows


def csv_questions(file: DataFile, columns: Columns) -> Iterator[Loaded]:
    """``.tsv`` is separated by tabs, anything else by commas; the first row names the columns."""
    delimiter = "\t" if file.suffix == ".tsv" else ","
    for number, row in enumerate(csv_rows(file, (), delimiter=delimiter), 1):
        yield mapped(row, columns, f"{file.label}-{number}", file.label, file.split)
