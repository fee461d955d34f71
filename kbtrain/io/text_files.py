"""Text files of users: unpacked by their name's ending, decoded as UTF-8; a file of another kind is named as such."""

from __future__ import annotations

import codecs
import io
import lzma
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from kbtrain.errors import UserError, at
from kbtrain.io.files import check_regular, problem

CHUNK = 1 << 16  # bytes
MAX_LINE = 1 << 26  # bytes; a longer line is a broken file, and would fill the memory
_HEAD = 512  # bytes that tell the kind of a file; "ustar" of a tar archive begins at byte 257

_EXPORT = "export it as JSON Lines or CSV"
_UNPACK = "unpack it first"
# First bytes of a file -> its kind, and what to do with it.
_KINDS: tuple[tuple[bytes, str, str], ...] = (
    (b"PAR1\x15", "a Parquet file", f"name it so that it ends in .parquet, or {_EXPORT}"),
    (b"%PDF-", "a PDF", "extract its text, for example with pdftotext"),
    (b"SQLite format 3\0", "a SQLite database", _EXPORT),
    (b"PK\x03\x04", "a zip archive", _UNPACK),
    (b"PK\x05\x06", "an empty zip archive", "get the file again"),
    (b"\x1f\x8b", "packed by gzip", "name it so that it ends in .gz"),
    (b"\x28\xb5\x2f\xfd", "packed by zstd", _UNPACK),
    (b"\xff\xfe", "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"),
    (b"version https://git-lfs.github.com/spec/", "a pointer of Git LFS, without the data", "run: git lfs pull"),
)
_PICKLE = re.compile(rb"\x80[\x02-\x05](?:\x95|c|\}|\]|\(|K|X|q)", re.DOTALL)
_MARKUP = re.compile(rb"\s*<(?:!doctype html|html)\b", re.IGNORECASE)

ENDINGS = (".gz", ".bz2", ".xz")


def plain_name(name: str) -> str:
    """A file's name without the endings of compression: ``x.jsonl`` for ``x.jsonl.gz``."""
    return name[: name.rindex(".")] if name.lower().endswith(ENDINGS) else name


def kind_of(head: bytes, markup: bool = True) -> tuple[str, str] | None:
    """Kind of a file and its remedy by its first bytes; None for text (a web page with ``markup``), and for what is not
    known."""
    for magic, kind, remedy in _KINDS:
        if head.startswith(magic):
            return kind, remedy
    if head[257:262] == b"ustar":
        return "a tar archive", "name it so that it ends in .tar, or unpack it"
    if _PICKLE.match(head):
        return "a pickle", f"pickles are never opened; {_EXPORT}"
    if b"\0" in head:
        return "a binary file or UTF-16 text", "give UTF-8 text"
    if not markup and _MARKUP.match(head):
        return "a web page (HTML)", "get the data themselves; pages of errors and of logins are saved so"
    return None


@contextmanager
def open_decompressed(raw: Callable[[], IO[bytes]], name: Path | str, markup: bool = True) -> Iterator[IO[bytes]]:
    """The bytes of a file that ``raw`` opens, decompressed; ``name`` is for messages. ``markup``: a web page may be the
    text that is expected. Raises :class:`UserError`, also for what goes wrong while the caller reads."""
    with (
        file_errors(name),
        raw() as source,
        io.BufferedReader(cast(io.RawIOBase, unpacked(source, name)), CHUNK) as stream,
    ):
        if kind := kind_of(stream.peek(_HEAD)[:_HEAD], markup):
            raise UserError(f"{at(name)}: is {kind[0]}; {kind[1]}")
        yield stream


@contextmanager
def file_errors(name: Path | str) -> Iterator[None]:
    """Turn what goes wrong while a file is opened, unpacked and read into :class:`UserError`."""
    try:
        yield
    except OSError as error:
        what = problem(error) if error.errno else f"cannot be read ({first_line(error)}); get the file again"
        raise UserError(f"{at(name)}: {what}") from None
    except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise UserError(f"{at(name)}: cannot be read ({first_line(error)}); get the file again") from None
    except (RuntimeError, NotImplementedError) as error:
        raise UserError(f"{at(name)}: cannot be unzipped here ({first_line(error)}); unzip it yourself") from None


def unpacked(stream: IO[bytes], name: Path | str) -> IO[bytes]:
    """The stream itself, or what it unpacks to by the ending of ``name``, of any content."""
    if not str(name).lower().endswith(ENDINGS):
        return stream
    from fsspec.compression import compr
    from fsspec.utils import infer_compression

    return cast(IO[bytes], compr[infer_compression(str(name))](stream, mode="rb"))


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its kind."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def open_seekable(raw: Callable[[], IO[bytes]], name: Path | str) -> Iterator[IO[bytes]]:
    """As :func:`open_decompressed`, of any kind, to be read in any order: from a temporary copy where need be."""
    with file_errors(name), raw() as source:
        stream = unpacked(source, name)
        if stream is source and isinstance(source, io.FileIO):
            yield stream
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(stream, copy, CHUNK)
            copy.seek(0)
            yield cast(IO[bytes], copy)


def opener_of(path: Path | str) -> Callable[[], IO[bytes]]:
    """Opener of a file of a disk, unbuffered. Raises :class:`UserError` for what cannot be read twice."""
    check_regular(path)
    return lambda: cast(IO[bytes], open(path, "rb", buffering=0))


def read_text(path: Path | str) -> str:
    """A whole file as text with ``\\n`` at the ends of lines, without a BOM. Raises :class:`UserError`."""
    return "".join(chunks_of(opener_of(path), path, markup=True)).replace("\r\n", "\n").replace("\r", "\n")


def lines_of(raw: Callable[[], IO[bytes]], name: Path | str, markup: bool = False) -> Iterator[tuple[int, str]]:
    """Stream (number from 1, text with its line end) of a file. Raises :class:`UserError` naming the line."""
    with open_decompressed(raw, name, markup) as stream:
        number = 0
        while data := stream.readline(MAX_LINE):
            number += 1
            if len(data) == MAX_LINE and not data.endswith(b"\n"):
                raise UserError(f"{at(name, number)}: a line of more than {MAX_LINE >> 20} MiB; is a line end lost?")
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(name, number, error) from None
            yield number, text.removeprefix("\ufeff") if number == 1 else text


def chunks_of(raw: Callable[[], IO[bytes]], name: Path | str, markup: bool = False) -> Iterator[str]:
    """The text that ``raw`` opens in chunks, without a BOM. Raises :class:`UserError` naming the line."""
    decoder, line, first = codecs.getincrementaldecoder("utf-8")(), 1, True
    with open_decompressed(raw, name, markup) as stream:
        while True:
            data = stream.read(CHUNK)
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                line += bytes(error.object)[: error.start].count(b"\n")
                raise _not_utf8(name, line, error) from None
            if text:
                line += text.count("\n")
                yield text.removeprefix("\ufeff") if first else text
                first = False
            if not data:
                return


def _not_utf8(name: Path | str, line: int, error: UnicodeDecodeError) -> UserError:
    byte = bytes(error.object)[error.start]
    return UserError(f"{at(name, line)}: not UTF-8 text (byte 0x{byte:02x}); convert it, for example with iconv")
