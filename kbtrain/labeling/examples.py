"""Labels and questions -> the examples a gate is trained on or scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from kbtrain import jsonl
from kbtrain.errors import UserError, at
from kbtrain.prompts import query_text
from kbtrain.records import Evidence, GateExample, Label, Question

R = TypeVar("R", Label, Evidence)


def example(question: Question, label: Label | None, tau_benefit: float = 0.0) -> GateExample:
    """The example of the plain question (``Reference: None``), with targets from ``llm`` samples.

    ``soft_benefit`` is (1 + benefit) / 2, ``benefit`` is benefit > tau_benefit; without a label all targets are None.
    """
    gain = None if label is None else label.benefit
    return GateExample(
        id=question.id,
        question_id=question.id,
        split=question.split,
        question=query_text(question),
        language=question.language,
        reference=None,
        mastery=None if label is None else label.known,
        certainty=None if label is None else label.certain,
        benefit=None if gain is None else gain > tau_benefit,
        soft_mastery=None if label is None else label.llm.mastery,
        soft_certainty=None if label is None else label.llm.certainty,
        soft_benefit=None if gain is None else (1 + gain) / 2,
        relation=question.relation,
    )


def reference_example(question: Question, label: Label | None, reference: str) -> GateExample:
    """The example whose prompt carries the evidence, with targets from ``rag`` samples (KBM, section 5.4).

    There is no target for benefit: the reference is already there.
    """
    rag = None if label is None else label.rag
    return GateExample(
        id=f"{question.id}#reference",
        question_id=question.id,
        split=question.split,
        question=query_text(question),
        language=question.language,
        reference=reference,
        mastery=None if label is None else label.known_rag,
        certainty=None if label is None else label.certain_rag,
        soft_mastery=None if rag is None else rag.mastery,
        soft_certainty=None if rag is None else rag.certainty,
        relation=question.relation,
    )


def join(questions: Iterable[Question], kind: type[R], path: Path | str) -> Iterator[tuple[Question, R | None]]:
    """Each question with its record of a file that stands in the same order and may leave questions out.

    Raises :class:`UserError` if a record's question is not among those that follow (order, repeats, another file).
    """
    records = jsonl.read_numbered(kind, path)
    number, record = next(records, (0, None))
    for question in questions:
        if record is None or record.question_id != question.id:
            yield question, None
            continue
        if isinstance(record, Label) and record.split != question.split:
            what = f"question '{question.id}' is in {question.split} now, the label says {record.split}"
            raise UserError(f"{at(path, number, 'split')}: {what}; run data_gen/label.py again")
        yield question, record
        number, record = next(records, (0, None))
    if record is not None:
        what = f"question '{record.question_id}' is missing, repeated or out of order against the questions file"
        raise UserError(f"{at(path, number, 'question_id')}: {what}; run the stage that wrote this file again")
