"""UTF-8 text in chunks or lines, with the line of what is not UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from kbtrain.errors import UserError, at
from kbtrain.questions.reading.files import DataFile

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
