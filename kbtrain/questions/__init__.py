"""Questions from anywhere: one loader per native format, all of them giving :class:`kbtrain.records.Question`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from kbtrain.errors import UserError, did_you_mean
from kbtrain.questions.atlas import atlas_file, atlas_passages
from kbtrain.questions.checks import checked, read_questions
from kbtrain.questions.jsonl_file import jsonl_questions
from kbtrain.records import Question

__all__ = ["LOADERS", "atlas_passages", "load_questions"]

# A loader streams (line number, question), so that every error can name its line.
LOADERS: dict[str, Callable[[Path], Iterator[tuple[int, Question]]]] = {
    "atlas": read_questions,  # embedded: real facts of geography and chemistry; needs no path
    "jsonl": jsonl_questions,  # any file of questions and answers
}


def load_questions(name: str, path: Path | None = None) -> Iterator[Question]:
    """Stream the questions of a data set, each checked. Raises :class:`UserError` naming file, line and field."""
    if name not in LOADERS:
        raise UserError(f"unknown data set '{name}'; {did_you_mean(name, LOADERS)}")
    if path is None and name != "atlas":
        raise UserError(f"data set '{name}' needs a path to its questions")
    source = atlas_file("questions") if path is None else path
    return (question for _, question in checked(LOADERS[name](source), source))
