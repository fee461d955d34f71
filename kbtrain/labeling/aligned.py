"""Labels or evidence read beside the questions they belong to, without holding either in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

from kbtrain import jsonl
from kbtrain.errors import UserError, at
from kbtrain.labeling.verdicts import QuestionVerdicts
from kbtrain.questions.checks import read_questions
from kbtrain.records import Evidence, Label, Question

R = TypeVar("R", Label, Evidence, QuestionVerdicts)


class Aligned(Generic[R]):
    """A file of records in the order of the questions, read beside them; it may leave questions out."""

    def __init__(self, kind: type[R], path: Path | str) -> None:
        self._path = path
        self._records: Iterator[tuple[int, R]] = jsonl.read_numbered(kind, path)
        self._line = 0
        self._next: R | None = None
        self._advance()

    def of(self, question: Question) -> R | None:
        """The question's record, or None. Raises :class:`UserError` for a label of another split."""
        record: R | None = self._next
        if record is None or record.question_id != question.id:
            return None
        if isinstance(record, Label) and record.split != question.split:
            what = f"question '{question.id}' is in {question.split} now, its label says {record.split}"
            raise UserError(f"{at(self._path, self._line, 'split')}: {what}; run data_gen/label.py again")
        self._advance()
        return record

    def finish(self) -> None:
        """Raise :class:`UserError` if a record is left whose question did not come."""
        if self._next is not None:
            what = f"question '{self._next.question_id}' is missing, repeated or out of order in the questions file"
            raise UserError(f"{at(self._path, self._line, 'question_id')}: {what}; run the stage that wrote this again")

    def _advance(self) -> None:
        self._line, self._next = next(self._records, (0, None))


Row = tuple[Question, Label | None, Evidence | None]


def side_by_side(questions: Path, labels: Path, evidence: Path | None) -> Iterator[Row]:
    """Each question with its label and, where a file of it is given, its evidence."""
    label_file = Aligned(Label, labels)
    evidence_file = None if evidence is None else Aligned(Evidence, evidence)
    for _, question in read_questions(questions):
        yield question, label_file.of(question), None if evidence_file is None else evidence_file.of(question)
    label_file.finish()
    if evidence_file is not None:
        evidence_file.finish()
