"""Verdicts of several models on the same questions: what is read, and every mistake with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from published.outcomes import read_closed_book, read_judged

from kbtrain.errors import UserError


def judged(**fields: Any) -> dict[str, Any]:
    base = {
        "id": "q1",
        "dataset": "nq",
        "split": "test",
        "question": "Who wrote book 1?",
        "answers": ["Ann"],
        "llms": {
            "big": {"none": 1, "one": 0, "many": 1, "em_none": 0, "em_one": 0, "em_many": 1},
            "small": {"none": 0, "one": 1, "many": 1},
        },
        "seakr": {"kind": "direct", "eigen_score": -2.5},
        "adaptive_rag_t5": {"pA": 0.25, "option": "C"},
    }
    return {**base, **fields}


def song(**fields: Any) -> dict[str, Any]:
    base = {"id": "s1", "question": "Who sings X?", "answers": ["Ann"], "popularity": {"question_docs": 7,
            "answer_docs": 9}, "llms": {"a-2.5": {"correct": 1, "confidence": 0.5},
            "b": {"correct": 0, "confidence": None}}}  # fmt: skip
    return {**base, **fields}


def stored(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def test_a_row_holds_each_models_verdicts_by_grading_and_others_scores(tmp_path: Path) -> None:
    (found,) = read_judged(stored(tmp_path, judged()))
    assert (found.question.dataset, found.question.split, found.question.answers) == ("nq", "test", ("Ann",))
    assert found.right["big", "published"] == {"none": True, "one": False, "many": True}
    assert found.right["big", "em"] == {"none": False, "one": False, "many": True}
    assert set(found.right) == {("big", "published"), ("big", "em"), ("small", "published")}
    assert found.scores == {"seakr.eigen_score": -2.5, "adaptive_rag_t5.pA": 0.25}


def test_of_closed_book_rows_only_what_is_known_before_answering_may_be_read(tmp_path: Path) -> None:
    (found,) = read_closed_book(stored(tmp_path, song()))
    assert found.right == {"a-2.5": True, "b": False} and found.confidence == {"a-2.5": 0.5}
    assert found.known_before == {"popularity.question_docs": 7.0}
    with pytest.raises(
        UserError, match=r"rows\.jsonl:1: field 'popularity\.question_docs': expected a count, found -7"
    ):
        list(read_closed_book(stored(tmp_path, song(popularity={"question_docs": -7}))))
