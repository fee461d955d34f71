"""Questions of a data set, without what came with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kbtrain.questions.base import Reading
from kbtrain.questions.catalogue import load
from kbtrain.records import Question


def load_questions(name: str, path: Path | None = None, reading: Reading | None = None) -> Iterator[Question]:
    """The questions alone."""
    return (loaded.question for loaded in load(name, path, reading))
