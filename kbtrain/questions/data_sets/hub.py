"""Questions from Hugging Face ``datasets``: a folder saved with it, local files it reads, or a name on the hub."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError, at
from kbtrain.questions.base import Loaded, Reading
from kbtrain.questions.data_sets.columns import mapped
from kbtrain.questions.reading.files import SPLITS, split_word
from kbtrain.questions.reading.rows import SourceRecord

_SAVED = ("dataset_dict.json", "dataset_info.json", "state.json")


def hub_questions(path: Path, reading: Reading) -> Iterator[Loaded]:
    """All splits, streamed; "validation" is dev. A row's line is its number within its split, from 1.

    One file is of the split that its name has, a saved part of a data set of the one that it was taken from; else
    they are test.

    ``path`` is a local folder or file, or a name on the hub ("owner/name"); ``reading.subset`` is the data set's
    configuration, ``reading.only`` a pattern for the names of its splits.
    """
    columns = replace(reading.columns, split=reading.split)
    for name, rows in _splits(path, reading).items():
        split = reading.split or SPLITS.get(name.lower())
        if split is None:
            hint = f"read it alone with only: {name} and a split of your choice"
            raise UserError(f"{at(path)}: its split '{name}' is not train, dev or test; {hint}")
        for number, data in _rows(rows, path, name):
            row = SourceRecord(data, f"{path}/{name}", number)
            yield mapped(row, columns, f"{path.name}/{name}/{number}", path.name, split)


def _splits(path: Path, reading: Reading) -> Mapping[str, Iterable[dict[str, Any]]]:
    import datasets

    with _one_line(path):
        if path.is_dir() and any((path / name).exists() for name in _SAVED):
            loaded = datasets.load_from_disk(str(path))
        else:  # datasets calls a single file "train", under any name
            files = {_split_word(path.name, path, reading): path.name} if path.is_file() else None
            place = path.resolve().parent if files else path
            loaded = datasets.load_dataset(str(place), name=reading.subset, data_files=files, streaming=True)
    by_name: Mapping[str, Iterable[dict[str, Any]]] = (
        loaded if isinstance(loaded, Mapping) else {_split_word(str(loaded.split), path, reading): loaded}
    )
    matching = {name: rows for name, rows in by_name.items() if fnmatch.fnmatch(name, reading.only or "*")}
    if not matching:
        raise UserError(f"{at(path)}: no split matches '{reading.only}'; valid: {', '.join(by_name)}")
    return matching


def _split_word(name: str, path: Path, reading: Reading) -> str:
    """The word that names a split, "test" without such a word."""
    return (not reading.split and split_word(name, SPLITS, str(path))) or "test"


def _rows(rows: Iterable[dict[str, Any]], path: Path, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1, row); what fails while it is read is one line with the number of the last good row."""
    stream, number = iter(rows), 0
    while True:
        with _one_line(Path(f"{path}/{name}:{number + 1}")):
            row = next(stream, None)
        if row is None:
            return
        number += 1
        yield number, dict(row)


@contextmanager
def _one_line(place: Path) -> Iterator[None]:
    import datasets

    try:
        yield
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{at(place)}: not a data set that can be loaded ({reason:.200})") from None
