"""Attach the passages of evidence.jsonl to examples, for gates that decide after the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.provenance import check_current
from kbtrain.records import Evidence, Example, GateExample


def attach_hits(examples: Sequence[Example], evidence: Path) -> list[GateExample]:
    """Questions with their passages and the rule of the passages' titles.

    Raises :class:`UserError` for a question without a row in ``evidence``, for a file that was changed, and for a file
    made from other questions than those beside it.
    """
    check_current(evidence, evidence.parent / "questions.jsonl")
    questions = [example for example in examples if isinstance(example, GateExample)]
    ids = {example.question_id for example in questions}
    by_question = {row.question_id: row for row in jsonl.read(Evidence, evidence) if row.question_id in ids}
    missing = next((example.id for example in questions if example.question_id not in by_question), None)
    if missing is not None:
        raise UserError(f"{evidence}: no passages of question '{missing}'; run data_gen/retrieve.py for it")
    rows = [(example, by_question[example.question_id]) for example in questions]
    return [replace(example, hits=row.hits, titles=row.titles) for example, row in rows]
