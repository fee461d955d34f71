"""Checkpoints that can be trusted: one is complete when its list of files is written, last of all.

A process killed while saving leaves a folder without that list, a failing disk one with files that do not match it
(size, and a checksum of the whole or, of large files, of pieces all over); it is put aside on the next start, which
says so and goes on from the one before.
"""

from __future__ import annotations

import json
import re
import shutil
import zlib
from pathlib import Path

from kbtrain.provenance import write_atomically

MARK = "complete.json"
_PIECE, _PIECES = 1 << 20, 64  # bytes and number of the pieces that are checked of a large file
_NAME = re.compile(r"checkpoint-(\d+)")


def mark_complete(folder: Path) -> None:
    """Write the list of files, their sizes and checksums."""
    write_atomically(folder / MARK, json.dumps(_marks(folder), indent=1) + "\n")


def is_complete(folder: Path) -> bool:
    """Whether all files are there in full and unchanged."""
    try:
        return bool(json.loads((folder / MARK).read_text()) == _marks(folder))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return False


def all_checkpoints(run: Path) -> list[Path]:
    """The folders ``checkpoint-<step>``, oldest first, complete or not."""
    found = [(int(m.group(1)), path) for path in run.glob("checkpoint-*") if (m := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def last_good(run: Path) -> tuple[Path | None, list[Path]]:
    """The newest complete checkpoint (None: start anew) and the incomplete ones."""
    good = [path for path in all_checkpoints(run) if is_complete(path)]
    return (good[-1] if good else None), [path for path in all_checkpoints(run) if path not in good]


def rotate(run: Path, keep: set[Path]) -> None:
    """Delete all complete checkpoints but the newest and those to keep."""
    good = [path for path in all_checkpoints(run) if is_complete(path)]
    for path in good[:-1]:
        if path not in keep:
            (path / MARK).unlink()  # first: a deletion cut short must not look complete
            shutil.rmtree(path)


def _marks(folder: Path) -> dict[str, list[int]]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != MARK)
    return {path.relative_to(folder).as_posix(): [path.stat().st_size, _checksum(path)] for path in sorted(files)}


def _checksum(path: Path) -> int:
    """CRC-32 of a file, or of evenly spread pieces of one above 64 MiB, its end among them: a checkpoint of a large
    model must not take minutes to check."""
    size, found = path.stat().st_size, 0
    pieces = min(_PIECES, -(-size // _PIECE))
    with open(path, "rb") as file:
        for i in range(pieces):
            file.seek(i * max(0, size - _PIECE) // max(1, pieces - 1))
            found = zlib.crc32(file.read(_PIECE), found)
    return found
