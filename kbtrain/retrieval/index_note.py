"""The note in an index's folder: what it was built from, and its files' sizes and hashes, which every reader checks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.provenance import file_sha256, write_atomically

NOTE = "built_from.json"
HASHED = 64 * 2**20  # bytes of an index that is hashed at each opening: a fifth of a second


def write_note(folder: Path, built_from: Mapping[str, Any]) -> None:
    """Note a finished index."""
    files = _files(folder)
    hashes = {path.name: file_sha256(path) for path in files}
    write_atomically(folder / NOTE, json.dumps({**built_from, "bytes": _sizes(files), "sha256": hashes}))


def is_whole(folder: Path, built_from: Mapping[str, Any]) -> bool:
    """True if the index was built from this and its files are those that were noted."""
    try:
        noted = jsonl.read_json(folder / NOTE)
    except UserError:
        return False
    own = {key: value for key, value in noted.items() if key not in ("bytes", "sha256")}
    return own == built_from and _first_change(folder, noted) is None


def check_noted(folder: Path) -> None:
    """Raise :class:`UserError` for an index whose files are others than its note says; one without a note passes."""
    if not (folder / NOTE).exists():
        return
    changed = _first_change(folder, jsonl.read_json(folder / NOTE))
    if changed is not None:
        raise UserError(
            f"{at(folder / changed)}: is not what was built; build the index again: run data_gen/retrieve.py with its "
            "options again"
        )


def _first_change(folder: Path, noted: Mapping[str, Any]) -> str | None:
    """Name of the first file that is missing, more, or another one.

    By sizes; and by hashes where the index is at most :data:`HASHED` bytes, else of files younger than the note.
    """
    sizes, hashes = noted.get("bytes"), noted.get("sha256")
    if not isinstance(sizes, dict) or not isinstance(hashes, dict):
        return NOTE
    files = _files(folder)
    found = _sizes(files)
    for name in sorted({*sizes, *found}):
        if sizes.get(name) != found.get(name):
            return str(name)
    written = (folder / NOTE).stat().st_mtime_ns
    looked = files if sum(found.values()) <= HASHED else [p for p in files if p.stat().st_mtime_ns >= written]
    return next((path.name for path in looked if file_sha256(path) != hashes.get(path.name)), None)


def _sizes(files: Sequence[Path]) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in files}


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.name != NOTE and path.is_file()]
