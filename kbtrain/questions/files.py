"""Files of a data set: one file, those of a zip or tar archive, or of a folder; compressed or not, UTF-8."""

from __future__ import annotations

import fnmatch
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, cast

from kbtrain.errors import UserError, at
from kbtrain.io.files import check_regular
from kbtrain.io.text_files import lines_of, open_seekable, opener_of, plain_name
from kbtrain.records import Split

SPLITS: Mapping[str, Split] = {
    "train": "train", "training": "train", "dev": "dev", "val": "dev", "valid": "dev", "validation": "dev",
    "test": "test", "testing": "test",
}  # fmt: skip
# data sets whose "dev" is a handful of examples for the prompt, and whose development set is "val"
FEW_SHOT_SPLITS: Mapping[str, Split] = {**SPLITS, "dev": "train"}
DOCUMENTS = (".md", ".markdown", ".txt")
_TAR = (".tar", ".tgz", ".tbz", ".tbz2", ".txz")
ARCHIVES = (".zip", *_TAR)


@dataclass(frozen=True)
class DataFile:
    """One text file. ``name`` is for messages, ``label`` (path within the data set, no suffixes) for ids.

    ``split_word`` is the word of the file's or folder's name that names its split ("val"), "" if none does.
    """

    name: str
    label: str
    split_word: str
    split: Split
    raw: Callable[[], IO[bytes]]

    @property
    def suffix(self) -> str:
        """``.csv`` for ``x.csv`` and ``x.csv.gz``."""
        return PurePosixPath(plain_name(self.name)).suffix.lower()


def data_files(
    path: Path,
    suffixes: Sequence[str],
    *,
    only: str | None = None,
    leave_out: str = "",
    split: Split | None = None,
    splits: Mapping[str, Split] = SPLITS,
    required: bool = True,
) -> Iterator[DataFile]:
    """The file at ``path``, or those in the archive or folder there that end in one of ``suffixes``, by name.

    ``only`` is a pattern for their names ("*/dev/*"), ``leave_out`` a regular expression. A file's split is ``split``,
    else the one in its name, else its folder's name, else ``test``. Raises :class:`UserError`.
    """
    any_file = False
    for inner, name, raw in _members(path):
        listed = name != str(path)
        matches = plain_name(inner).lower().endswith(tuple(suffixes)) and fnmatch.fnmatch(inner, only or "*")
        if listed and not (matches and not (leave_out and re.search(leave_out, inner))):
            continue
        if only and not listed:
            raise UserError(f"{at(path)}: one file; only is for archives and folders")
        any_file = True
        try:
            word = split_word(inner, splits, name) or (split_word(path.name, splits, name) if listed else "")
        except UserError:
            if split is None:
                raise
            word = ""
        yield DataFile(name, _label(inner), word, split or splits.get(word, "test"), raw)
    if required and not any_file:
        condition = f"matches '{only}' and ends" if only else "ends"
        raise UserError(f"{at(path)}: no file in it {condition} in {' or '.join(suffixes)}")


def data_file(path: Path) -> DataFile:
    """One file that is not an archive. Raises :class:`UserError` for a folder, a pipe or a device."""
    return DataFile(str(path), _label(path.name), "", "test", opener_of(path))


def _label(name: str) -> str:
    return re.sub(r"(\.(jsonl|json|csv|tsv|parquet))+$", "", plain_name(name))


def split_word(name: str, splits: Mapping[str, Split], place: str = "") -> str:
    """The word of a path that names a split; its last part counts before the folders. "" without one.

    Raises :class:`UserError` for a part that names two splits.
    """
    for part in reversed(PurePosixPath(name.lower()).parts):
        words = [word for word in re.split(r"[^a-z]+", part) if word in splits]
        if len({splits[word] for word in words}) > 1:
            raise UserError(f"{at(place or name)}: its name has two splits ({', '.join(words)}); set split")
        if words:
            return words[-1]
    return ""


def _members(path: Path) -> Iterator[tuple[str, str, Callable[[], IO[bytes]]]]:
    """(path within the data set, name for messages, how to open it)."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            inner = file.relative_to(path).as_posix()
            if file.is_file() and not _hidden(inner):
                yield inner, str(file), opener_of(file)
        return
    check_regular(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for inner in sorted(archive.namelist()):
                if not inner.endswith("/") and not _hidden(inner):
                    yield inner, f"{path}/{inner}", partial(archive.open, inner)
    elif plain_name(path.name).lower().endswith(_TAR):
        yield from _tar_members(path)
    elif path.suffix == ".zip":
        raise UserError(f"{at(path)}: not a complete zip archive; get the file again")
    else:
        yield path.name, str(path), opener_of(path)


def _tar_members(path: Path) -> Iterator[tuple[str, str, Callable[[], IO[bytes]]]]:
    """Members in the archive's own order: seeking back in a compressed archive would read it again."""
    with open_seekable(opener_of(path), path) as file:
        try:
            with tarfile.open(fileobj=file) as archive:
                extract = cast(Callable[[tarfile.TarInfo], IO[bytes]], archive.extractfile)  # None for no file alone
                for member in archive:
                    if member.isfile() and not _hidden(member.name):
                        yield member.name, f"{path}/{member.name}", partial(extract, member)
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise UserError(f"{at(path)}: not a complete tar archive ({error}); get the file again") from None


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)


def text_lines(file: DataFile) -> Iterator[tuple[int, str]]:
    """Stream (number from 1, text with its line end). Raises :class:`UserError` naming the line."""
    return lines_of(file.raw, file.name, markup=file.suffix in DOCUMENTS)  # a document may be a web page
