"""Text files of a data set: plain, gzip, in a zip or tar archive, or in a folder; UTF-8, with the line of errors."""

from __future__ import annotations

import codecs
import fnmatch
import gzip
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from kbtrain.errors import UserError, at
from kbtrain.files import check_regular, problem
from kbtrain.records import Split

SPLITS: Mapping[str, Split] = {
    "train": "train", "training": "train", "dev": "dev", "val": "dev", "valid": "dev", "validation": "dev",
    "test": "test", "testing": "test",
}  # fmt: skip
# data sets whose "dev" is a handful of examples for the prompt, and whose development set is "val"
FEW_SHOT_SPLITS: Mapping[str, Split] = {**SPLITS, "dev": "train"}


@dataclass(frozen=True)
class DataFile:
    """One text file. ``name`` is for messages, ``label`` (path within the data set, no suffixes) for ids.

    ``split_word`` is the word of the file's or folder's name that tells its split ("val"), "" if none does.
    """

    name: str
    label: str
    split_word: str
    split: Split
    raw: Callable[[], IO[bytes]]

    @property
    def suffix(self) -> str:
        """``.csv`` for ``x.csv`` and ``x.csv.gz``."""
        return PurePosixPath(self.name.removesuffix(".gz")).suffix.lower()

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The file's bytes, unzipped. What is wrong with the file while it is read becomes a :class:`UserError`."""
        try:
            with self.raw() as stream, io.BufferedReader(stream) as peekable:  # type: ignore[type-var]
                if peekable.peek(2)[:2] == b"\x1f\x8b":
                    with gzip.open(peekable) as unzipped:
                        yield unzipped  # type: ignore[misc]
                else:
                    yield peekable
        except OSError as error:
            said = problem(error) if error.errno else f"cannot be read ({_first_line(error)}); get the file again"
            raise UserError(f"{at(self.name)}: {said}") from None
        except (EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
            raise UserError(f"{at(self.name)}: cannot be read ({_first_line(error)}); get the file again") from None
        except (RuntimeError, NotImplementedError) as error:
            raise UserError(
                f"{at(self.name)}: cannot be unzipped here ({_first_line(error)}); unzip it yourself"
            ) from None


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
    else the one its name tells, else its folder's name, else ``test``. Raises :class:`UserError`.
    """
    found = False
    for inner, name, raw in _members(path):
        plain = inner.removesuffix(".gz").lower()
        listed = name != str(path)
        if listed and not (plain.endswith(tuple(suffixes)) and fnmatch.fnmatch(inner, only or "*")):
            continue
        if listed and leave_out and re.search(leave_out, inner):
            continue
        if only and not listed:
            raise UserError(f"{at(path)}: one file; only is for archives and folders")
        found = True
        try:
            word = split_word(inner, splits, name) or (split_word(path.name, splits, name) if listed else "")
        except UserError:
            if split is None:
                raise
            word = ""
        label = re.sub(r"(\.(gz|jsonl|json|jsonnet|csv|tsv))+$", "", inner)
        yield DataFile(name, label, word, split or splits.get(word, "test"), raw)
    if required and not found:
        wanted = f"matches '{only}' and ends" if only else "ends"
        raise UserError(f"{at(path)}: no file in it {wanted} in {' or '.join(suffixes)}")


def split_word(name: str, splits: Mapping[str, Split], place: str = "") -> str:
    """The word of a path that names a split; its last part counts before the folders. "" if there is none.

    Raises :class:`UserError` for a part that names two splits.
    """
    for part in reversed(PurePosixPath(name.lower()).parts):
        words = [word for word in re.split(r"[^a-z]+", part) if word in splits]
        if len({splits[word] for word in words}) > 1:
            raise UserError(f"{at(place or name)}: its name tells two splits ({', '.join(words)}); set split")
        if words:
            return words[-1]
    return ""


def _members(path: Path) -> Iterator[tuple[str, str, Callable[[], IO[bytes]]]]:
    """(path within the data set, name for messages, how to open it)."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            inner = file.relative_to(path).as_posix()
            if file.is_file() and not _hidden(inner):
                yield inner, str(file), partial(_plain, file)
        return
    check_regular(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for inner in sorted(archive.namelist()):
                if not inner.endswith("/") and not _hidden(inner):
                    yield inner, f"{path}/{inner}", partial(archive.open, inner)
    elif path.suffix in {".tar", ".tgz"} or path.name.endswith(".tar.gz"):
        yield from _tar_members(path)
    elif path.suffix == ".zip":
        raise UserError(f"{at(path)}: not a whole zip archive; get the file again")
    else:
        yield path.name, str(path), partial(_plain, path)


def _plain(path: Path) -> IO[bytes]:
    return open(path, "rb", buffering=0)


def _tar_members(path: Path) -> Iterator[tuple[str, str, Callable[[], IO[bytes]]]]:
    """Members in the archive's own order: seeking back in a compressed archive would read it again."""
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and not _hidden(member.name):
                    yield member.name, f"{path}/{member.name}", partial(_extract, archive, member)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise UserError(f"{at(path)}: not a whole tar archive ({_first_line(error)}); get the file again") from None


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    stream = archive.extractfile(member)
    assert stream is not None  # a file, as its caller saw
    return stream


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)


CHUNK = 1 << 16  # bytes
MAX_LINE = 1 << 26  # bytes; a longer line is a broken file, and would fill the memory


def text_chunks(file: DataFile) -> Iterator[str]:
    """The text of a file, a byte-order mark removed. Raises :class:`UserError` naming the line."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, first = 1, True
    with file.open() as stream:
        while True:
            data = stream.read(CHUNK)
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                line += bytes(error.object)[: error.start].count(b"\n")
                raise _not_utf8(file, line, error) from None
            if text:
                line += text.count("\n")
                yield text.removeprefix("\ufeff") if first else text
                first = False
            if not data:
                return


def text_lines(file: DataFile) -> Iterator[tuple[int, str]]:
    """Stream (number from 1, text with its line end). Raises :class:`UserError` naming the line."""
    with file.open() as stream:
        number = 0
        while raw := stream.readline(MAX_LINE):
            number += 1
            if len(raw) == MAX_LINE and not raw.endswith(b"\n"):
                raise UserError(
                    f"{at(file.name, number)}: a line of more than {MAX_LINE >> 20} MiB; is a line end lost?"
                )
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(file, number, error) from None
            yield number, text.removeprefix("\ufeff") if number == 1 else text


def _not_utf8(file: DataFile, line: int, error: UnicodeDecodeError) -> UserError:
    byte = bytes(error.object)[error.start]
    return UserError(f"{at(file.name, line)}: not UTF-8 text (byte 0x{byte:02x}); convert it, for example with iconv")
