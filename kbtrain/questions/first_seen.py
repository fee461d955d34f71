"""Where a key was seen first, kept on disk: checking a file for repeats takes the same memory for any length."""

from __future__ import annotations

import hashlib
import sqlite3
from types import TracebackType
from typing import Self


class FirstSeen:
    """A map from keys to (id, line), in an unnamed temporary file that goes away with this object."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)  # "" is SQLite's name for a temporary file
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("CREATE TABLE seen (key BLOB PRIMARY KEY, id TEXT, line INTEGER) WITHOUT ROWID")
        self._db.execute("BEGIN")

    def add(self, key: str, name: str, line: int) -> tuple[str, int] | None:
        """Remember a key; returns (id, line) of its first appearance if this is not the first."""
        added = self._db.execute("INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", (_digest(key), name, line))
        return None if added.rowcount else self.find(key)

    def find(self, key: str) -> tuple[str, int] | None:
        """(id, line) of the key's first appearance, or None."""
        found: tuple[str, int] | None = self._db.execute(
            "SELECT id, line FROM seen WHERE key = ?", (_digest(key),)
        ).fetchone()
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._db.close()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
