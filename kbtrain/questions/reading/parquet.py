"""Parquet files, one row at a time; a row's line is its number from 1."""

from __future__ import annotations

from collections.abc import Iterator

from kbtrain.errors import UserError, at
from kbtrain.io.text_files import open_seekable
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.rows import SourceRecord

PARQUET = ".parquet"
_ROWS = 1024  # in memory at once


def parquet_rows(file: DataFile) -> Iterator[SourceRecord]:
    """The rows with their columns as fields; a column of structs is an object. Raises :class:`UserError`."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    number = 0
    with open_seekable(file.raw, file.name) as stream:
        try:
            for batch in ParquetFile(stream).iter_batches(batch_size=_ROWS):
                for data in batch.to_pylist():
                    number += 1
                    yield SourceRecord(data, file.name, number)
        except pyarrow.ArrowException as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"{at(file.name)}: cannot be read as Parquet ({reason:.100}); get the file again") from None
