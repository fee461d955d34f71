"""Text files of users: decompressed by their magic bytes, decoded as UTF-8; a file of another kind is named as such.

Every reader of text goes through :func:`open_decompressed`: gzip, bzip2, xz, zstd and lz4 are read under any name of
the file called, and a Parquet file, a PDF or a database is refused with its name and not as broken UTF-8.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
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
from typing import IO, Any, cast

from kbtrain.errors import UserError, at
from kbtrain.io.files import check_regular, problem

CHUNK = 1 << 16  # bytes
MAX_LINE = 1 << 26  # bytes; a longer line is a broken file, and would fill the memory
_HEAD = 512  # bytes that tell the kind of a file; "ustar" of a tar archive begins at byte 257
_LAYERS = 4  # of compression; a file that unpacks to itself has no end

_EXPORT = "export it as JSON Lines or CSV"
_UNPACK = "unpack it first"
# First bytes of a file -> its kind, and what to do with it.
_KINDS: tuple[tuple[bytes, str, str], ...] = (
    (b"PAR1\x15", "a Parquet file", f"name it so that it ends in .parquet, or {_EXPORT}"),
    (b"%PDF-", "a PDF", "extract its text, for example with pdftotext"),
    (b"SQLite format 3\0", "a SQLite database", _EXPORT),
    (b"PK\x03\x04", "a zip archive", _UNPACK),
    (b"PK\x05\x06", "an empty zip archive", "get the file again"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Word, Excel or PowerPoint document", "save it as text or CSV"),
    (b"{\\rtf", "an RTF document", "save it as plain text"),
    (b"\xff\xfe", "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"),
    (b"version https://git-lfs.github.com/spec/", "a pointer of Git LFS, without the data", "run: git lfs pull"),
)
_PICKLE = re.compile(rb"\x80[\x02-\x05](?:\x95|c|\}|\]|\(|K|X|q)", re.DOTALL)
_MARKUP = re.compile(rb"\s*<(?:!doctype html|html)\b", re.IGNORECASE)
_OFFICE = {"word/": "a Word document", "xl/": "an Excel workbook", "ppt/": "a PowerPoint document"}

Opener = Callable[[Any], IO[bytes]]


def _arrow_stream(codec: str) -> Opener:
    """Decompression by pyarrow, which brings the codecs that Python lacks."""

    def open_decompressed(stream: IO[bytes]) -> IO[bytes]:
        import pyarrow

        return cast(IO[bytes], pyarrow.CompressedInputStream(stream, codec))

    return open_decompressed


_COMPRESSED: tuple[tuple[re.Pattern[bytes], Opener], ...] = (
    (re.compile(rb"\x1f\x8b"), cast(Opener, gzip.open)),
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), cast(Opener, bz2.open)),
    (re.compile(rb"\xfd7zXZ\0"), cast(Opener, lzma.open)),
    (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), _arrow_stream("zstd")),  # or a frame without data
    (re.compile(rb"\x04\x22\x4d\x18"), _arrow_stream("lz4")),
)
ENDINGS = (".gz", ".bz2", ".xz", ".zst", ".zstd", ".lz4")


def plain_name(name: str) -> str:
    """A file's name without the endings of compression: ``x.jsonl`` for ``x.jsonl.zst``."""
    while name.lower().endswith(ENDINGS):
        name = name[: name.rindex(".")]
    return name


def kind_of(head: bytes) -> tuple[str, str] | None:
    """Kind of a file and its remedy by its first bytes; None for text, and for what is not known."""
    for magic, kind, remedy in _KINDS:
        if head.startswith(magic):
            return kind, remedy
    if head[257:262] == b"ustar":
        return "a tar archive", "name it so that it ends in .tar, or unpack it"
    if _PICKLE.match(head):
        return "a pickle", f"pickles are never opened; {_EXPORT}"
    if b"\0" in head:
        return "a binary file or UTF-16 text", "give UTF-8 text"
    return None


def office_kind(path: Path | str) -> str | None:
    """The kind of office document that a zip archive is; None for any other archive."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    parts = _OFFICE if "[Content_Types].xml" in names else {}
    return next((kind for part, kind in parts.items() if any(name.startswith(part) for name in names)), None)


def refuse_office(path: Path | str) -> None:
    """Raise :class:`UserError` for an office document, which is a zip archive as well."""
    kind = office_kind(path)
    if kind is not None:
        raise UserError(f"{at(path)}: is {kind}; save it as text or CSV")


@contextmanager
def open_decompressed(raw: Callable[[], IO[bytes]], name: Path | str, markup: bool = True) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed; ``raw`` opens the file, ``name`` is for messages.

    ``markup``: a web page may be the text that is expected. Raises :class:`UserError` for a file of another kind, and
    for what goes wrong while the caller reads.
    """
    with file_errors(name), raw() as source, _peekable(source) as packed:
        stream = decompressed(packed, name)
        _refuse_kind(stream.peek(_HEAD)[:_HEAD], name, markup)
        yield stream


@contextmanager
def file_errors(name: Path | str) -> Iterator[None]:
    """Turn what goes wrong while a file is opened, unpacked and read into :class:`UserError`."""
    try:
        yield
    except OSError as error:
        remedy = "unpack it: zstd -d --long=31" if "too much memory" in str(error) else "get the file again"
        what = problem(error) if error.errno else f"cannot be read ({_first_line(error)}); {remedy}"
        raise UserError(f"{at(name)}: {what}") from None
    except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise UserError(f"{at(name)}: cannot be read ({_first_line(error)}); get the file again") from None
    except (RuntimeError, NotImplementedError) as error:
        raise UserError(f"{at(name)}: cannot be unzipped here ({_first_line(error)}); unzip it yourself") from None


def decompressed(stream: io.BufferedReader, name: Path | str) -> io.BufferedReader:
    """The stream itself, or what it unpacks to, of any content. Raises :class:`UserError`."""
    for _ in range(_LAYERS):
        head = stream.peek(_HEAD)[:_HEAD]
        opener = next((opener for magic, opener in _COMPRESSED if magic.match(head)), None)
        if opener is None:
            return stream
        stream = _peekable(opener(stream))
    raise UserError(f"{at(name)}: compressed more than {_LAYERS} times; unpack it first")


def _refuse_kind(head: bytes, name: Path | str, markup: bool) -> None:
    kind = kind_of(head)
    if kind is None and not markup and _MARKUP.match(head):
        kind = "a web page (HTML)", "get the data themselves; pages of errors and of logins are saved so"
    if kind is None:
        return
    what = kind[0]
    if head.startswith(b"PK\x03\x04") and Path(name).is_file():
        what = _office_or(what, Path(name))
    raise UserError(f"{at(name)}: is {what}; {kind[1]}")


def _office_or(what: str, path: Path) -> str:
    try:
        return office_kind(path) or what
    except (OSError, zipfile.BadZipFile, NotImplementedError):
        return what


def _peekable(stream: IO[bytes]) -> io.BufferedReader:
    return io.BufferedReader(cast(io.RawIOBase, stream), CHUNK)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


@contextmanager
def open_seekable(raw: Callable[[], IO[bytes]], name: Path | str) -> Iterator[IO[bytes]]:
    """As :func:`open_decompressed`, of a file of any kind, to be read in any order.

    What can only be read forwards, or slowly backwards, is copied to a temporary file.
    """
    with file_errors(name), raw() as source, _peekable(source) as packed:
        stream = decompressed(packed, name)
        if stream is packed and isinstance(source, io.FileIO):
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
    with open_decompressed(opener_of(path), path) as stream:
        data = stream.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, data[: error.start].count(b"\n") + 1, error) from None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def read_lines(path: Path | str) -> Iterator[tuple[int, str]]:
    """Stream (number from 1, text with its line end) of a file. Raises :class:`UserError` naming the line."""
    return lines_of(opener_of(path), path)


def lines_of(raw: Callable[[], IO[bytes]], name: Path | str, markup: bool = False) -> Iterator[tuple[int, str]]:
    """As :func:`read_lines`, of what ``raw`` opens."""
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


def chunks_of(raw: Callable[[], IO[bytes]], name: Path | str) -> Iterator[str]:
    """The text that ``raw`` opens in chunks, without a BOM. Raises :class:`UserError` naming the line."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, first = 1, True
    with open_decompressed(raw, name, markup=False) as stream:
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
