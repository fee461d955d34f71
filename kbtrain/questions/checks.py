"""What every stage that reads ``questions.jsonl`` relies on, checked while it streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from kbtrain import jsonl
from kbtrain.errors import UserError, at
from kbtrain.questions.first_seen import FirstSeen
from kbtrain.records import Question


def read_questions(path: Path | str) -> Iterator[tuple[int, Question]]:
    """Stream (line number, question) of a file in our own format, checked by :func:`checked`."""
    yield from checked(jsonl.read_numbered(Question, path), path)


def checked(numbered: Iterable[tuple[int, Question]], path: Path | str) -> Iterator[tuple[int, Question]]:
    """Pass on (line number, question). Raises :class:`UserError` naming file, line and field for a duplicate id, an
    empty text, missing or empty answers, and for multiple choice an answer that is no option's letter. No answer at
    all is right where ``gold`` says so.
    """
    with FirstSeen() as ids:
        for number, question in numbered:
            problem = problem_of(question)
            if problem is not None:
                field, what = problem
                raise UserError(f"{at(path, number, field)}: {what}")
            earlier = ids.add(question.id, question.id, number)
            if earlier is not None:
                raise UserError(f"{at(path, number, 'id')}: duplicate {question.id!r}, first in line {earlier[1]}")
            yield number, question


def problem_of(question: Question) -> tuple[str, str] | None:
    """(field, what is wrong) of a question that could not be asked or graded; None if it is sound."""
    if not question.id.strip():
        return "id", "empty"
    if not question.text.strip():
        return "text", "empty"
    if not question.answers and question.gold == "given":
        return "answers", "no answer; give at least one"
    if question.answers and question.gold != "given":
        return "answers", f"there is one, but gold is '{question.gold}'"
    if not all(answer.strip() for answer in question.answers):
        return "answers", "an answer is empty; delete it or fill it in"
    if question.form == "choice" and len(question.options) < 2:
        return "options", f"multiple choice with {len(question.options)} option(s); give two or more"
    if len(question.options) > 26:
        return "options", f"{len(question.options)} options, but letters reach from A to Z"
    if question.grading == "option":
        letters = [chr(65 + i) for i in range(len(question.options))]
        wrong = next((answer for answer in question.answers if answer not in letters), None)
        if wrong is not None:
            valid = ", ".join(letters) or "none, there are no options"
            return "answers", f"'{wrong}' is no option's letter (valid: {valid})"
    return None
