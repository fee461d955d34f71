"""Grading of a run folder: the files that it depends on, its rules, and a judge's verdicts in place of the rules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kbtrain.answers.grading import Verdicts, rules_of
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists, script_of
from kbtrain.io.provenance import check_current, meta_of
from kbtrain.labeling.verdicts import QuestionVerdicts
from kbtrain.records import Question

ByQuestion = Mapping[str, Verdicts]


def grading_sources(run: Path) -> tuple[Path, Path, Path]:
    """Files of a run folder that its labels and outcomes depend on, if these note them."""
    return run / "questions.jsonl", run / "samples.db", run / "verdicts.jsonl"


def check_rules(path: Path, rules: Mapping[str, Any], questions: Path) -> None:
    """Raise :class:`UserError` for a file whose answers were graded by other rules (``noted``) than today's.

    A file that notes no rules passes, and a file without its questions beside it.
    """
    if "normalisation" not in rules or not path_exists(questions):
        return
    today = rules_of(jsonl.read(Question, questions))
    old = next((name for name, value in today.items() if rules.get(name) != value), None)
    if old is not None:
        raise UserError(
            f"{at(path)}: its answers were graded by an older rule ({old} {rules.get(old)}, today {today[old]}); run "
            f"{script_of(path)} again"
        )


def verdicts_file(run: Path) -> Path | None:
    """The verdicts of the judge that graded a run folder's labels; it grades outcomes too.

    None without labels, and for labels that each question's own rule graded.
    """
    judged = meta_of(run / "labels.jsonl").get("label_rule", {}).get("judge")
    return run / "verdicts.jsonl" if judged else None


def read_run_verdicts(run: Path) -> ByQuestion | None:
    """The verdicts of :func:`verdicts_file` by question.

    Raises :class:`UserError` for a file that was changed, and for verdicts on other questions.
    """
    path = verdicts_file(run)
    if path is None:
        return None
    check_current(path, run / "questions.jsonl")
    return {record.question_id: record.right for record in jsonl.read(QuestionVerdicts, path)}
