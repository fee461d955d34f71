"""Questions from anywhere: one loader per native format, all of them giving :class:`kbtrain.records.Question`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from kbtrain.errors import UserError, did_you_mean
from kbtrain.questions.atlas import atlas_passages, atlas_questions
from kbtrain.questions.jsonl_file import jsonl_questions
from kbtrain.records import Question

__all__ = ["LOADERS", "atlas_passages", "load_questions"]

LOADERS: dict[str, Callable[[Path | None], Iterator[Question]]] = {
    "atlas": atlas_questions,  # embedded; needs no path
    "jsonl": jsonl_questions,  # any file of questions and answers
}


def load_questions(name: str, path: Path | None = None) -> Iterator[Question]:
    """Stream the questions of a data set, each checked. Raises :class:`UserError` naming file, line and field."""
    if name not in LOADERS:
        raise UserError(f"unknown data set '{name}'; {did_you_mean(name, LOADERS)}")
    return checked(LOADERS[name](path), name if path is None else str(path))


def checked(questions: Iterator[Question], source: str) -> Iterator[Question]:
    """Pass on what is sound: an id of its own, a text, answers, and letters that name options."""
    seen: set[str] = set()
    for number, question in enumerate(questions, 1):
        where = f"{source}: record {number}"
        if question.id in seen:
            raise UserError(f"{where}: field 'id': duplicate id '{question.id}'")
        seen.add(question.id)
        problem = unsound(question)
        if problem:
            raise UserError(f"{where}: {problem}")
        yield question


def unsound(question: Question) -> str | None:
    """What is wrong with a question, beginning with the field's name; None: nothing."""
    if not question.text.strip():
        return "field 'text': empty"
    if not question.answers or not all(answer.strip() for answer in question.answers):
        return "field 'answers': needs at least one answer, and none of them empty"
    letters = [chr(65 + i) for i in range(len(question.options))]
    if question.form == "choice" and len(question.options) < 2:
        return "field 'options': a multiple-choice question needs at least two"
    if question.grading == "option" and not set(question.answers) <= set(letters):
        return f"field 'answers': letters among {', '.join(letters) or 'none'} expected, found {question.answers}"
    return None
