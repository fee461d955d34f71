"""The corpus of a run in the making: passages that came with the questions, each once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from kbtrain import jsonl
from kbtrain.provenance import meta_path, read_meta
from kbtrain.questions.base import Loaded
from kbtrain.questions.first_seen import FirstSeen
from kbtrain.records import Passage, Question


class PassageFile:
    """A context manager that appends to ``<path>.partial``; ``n`` counts the passages in it.

    Without :meth:`finish` nothing is left behind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.n = 0
        self._partial = path.with_name(path.name + ".partial")
        self._seen = FirstSeen()

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._partial, "w", encoding="utf-8")  # closed in __exit__
        return self

    def add(self, passages: Iterable[Passage]) -> None:
        for passage in passages:
            if self._seen.add(passage.id, passage.id, self.n) is None:
                self._file.write(jsonl.dump(passage) + "\n")
                self.n += 1

    def with_own(self, loaded: Loaded) -> Question:
        """The question, after its passages went into the corpus."""
        self.add(loaded.passages)
        return loaded.question

    def finish(self) -> None:
        """Give the file its name. Without passages an earlier collecting's file goes: it belongs to other questions."""
        if self.n:
            self._file.flush()
            os.fsync(self._file.fileno())
            os.replace(self._partial, self.path)
        elif meta_path(self.path).exists() and read_meta(self.path)["stage"] == "collect":
            self.path.unlink(missing_ok=True)
            meta_path(self.path).unlink()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()
        self._seen.__exit__(kind, error, tb)
        self._partial.unlink(missing_ok=True)
