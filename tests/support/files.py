"""Files that a test changes after a stage made them, and a disk that is full."""

from __future__ import annotations

import contextlib
import csv
import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

from kbtrain.io.provenance import file_sha256


def judge(sheet: Path, most: int | None = None, right: Callable[..., str] = lambda _: "good") -> list[dict[str, str]]:
    """Fill in a sheet of an audit as people would, who see no arm and know what is ``right``."""
    with open(sheet) as file:
        rows = list(csv.DictReader(file))
    for row in rows[:most]:
        row |= {f"{side}_right": str(int(row[f"answer_{side}"] == right(row))) for side in "ab"}
    with open(sheet, "w") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return rows


def keep_change(path: Path) -> None:
    """Drop a file's metadata, as the error of a changed file says: what is in it now is the user's own."""
    path.with_name(path.name + ".meta.json").unlink()


def note_change(path: Path) -> None:
    """Write the changed file's hash into its metadata, as if its stage had made it so."""
    meta = path.with_name(path.name + ".meta.json")
    noted = json.loads(meta.read_text(encoding="utf-8"))
    meta.write_text(json.dumps({**noted, "sha256": file_sha256(path)}), encoding="utf-8")


@contextlib.contextmanager
def full_disk(room: int = 4096) -> Iterator[None]:
    """No file may grow beyond ``room`` bytes: each writer is refused as by a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
