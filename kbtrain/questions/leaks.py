"""Training questions that also stand in dev or test: a gate must not be trained on what it is judged by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kbtrain.answers.grading import normalise
from kbtrain.errors import UserError, at
from kbtrain.questions.checks import read_questions
from kbtrain.questions.first_seen import FirstSeen
from kbtrain.records import Question


@dataclass(frozen=True)
class Leak:
    """A training question and the dev or test question with the same normalised text, each with its line."""

    id: str
    line: int
    other_id: str
    other_line: int


def leak_key(question: Question) -> str:
    """What two questions must share to count as the same: normalised text and, in any order, normalised options."""
    return "\n".join([normalise(question.text), *sorted(normalise(option) for option in question.options)])


def find_leaks(path: Path | str) -> Iterator[Leak]:
    """Every leak in a questions file, in the order of its training questions; memory does not grow with the file."""
    with FirstSeen() as held_out:
        for line, question in read_questions(path):
            if question.split != "train":
                held_out.add(leak_key(question), question.id, line)
        for line, question in read_questions(path):
            other = held_out.find(leak_key(question)) if question.split == "train" else None
            if other is not None:
                yield Leak(question.id, line, *other)


def refuse_leaks(path: Path | str) -> None:
    """Raise :class:`UserError` for the first leak, naming both questions and their lines."""
    for leak in find_leaks(path):
        raise UserError(
            f"{at(path, leak.line)}: training question '{leak.id}' also stands in dev or test as '{leak.other_id}' "
            f"(line {leak.other_line}); delete one of them or set on_leak: drop"
        )
