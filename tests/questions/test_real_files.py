"""The loaders on the data sets' real files: their record counts, and the last record of each as its source has it.

The files are not part of the project; KBTRAIN_TEST_DATA names a folder that has them.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from kbtrain.questions.base import Columns, Reading
from kbtrain.questions.catalogue import load

FOLDER = os.environ.get("KBTRAIN_TEST_DATA")
pytestmark = pytest.mark.skipif(not FOLDER, reason="KBTRAIN_TEST_DATA names no folder with the data sets' real files")
TABLE = {"id": "qid", "text": "question_text", "answers": "reference", "relation": "type", "contexts": "context"}


@pytest.mark.parametrize(
    ("dataset", "name", "columns", "splits", "answers", "gold"),
    [
        ("nq_open", "nq-open.dev.jsonl", {}, {"dev": 3610}, ("enemy",), []),
        ("popqa", "popqa.json", {}, {"test": 1000}, None, None),
        ("hotpotqa", "hotpot_dev_v1_simplified.json", {}, {"dev": 7405}, ("Norwood, Massachusetts",), []),
        ("musique", "musique_train100_native.json", {}, {"train": 100}, ("Dec. 10, 1817",),
         ["Pocahontas Mounds", "History of Mississippi"]),
        ("squad", "squad2.dev-v2.0.json", {}, {"dev": 6078}, (), []),
        ("mmlu", "mmlu.zip", {}, {"train": 285, "dev": 1531, "test": 14042}, ("A",), []),
        ("csv", "adarague_hotpotqa_train.csv", TABLE, {"train": 500}, ("David John Lodge CBE",),
         ["Thomas Friedman", "David Lodge (author)"]),
    ],
)  # fmt: skip
def test_a_real_file_comes_whole(
    dataset: str, name: str, columns: dict[str, str | list[str]], splits: dict[str, int], answers: object, gold: object
) -> None:
    path = Path(FOLDER or "") / name
    if not path.exists():
        pytest.skip(f"no {name} in KBTRAIN_TEST_DATA")
    found = list(load(dataset, path, Reading(columns=Columns(columns))))
    assert Counter(one.question.split for one in found) == splits
    last = found[-1]
    titles = {passage.id: passage.title for passage in last.passages}
    assert answers in (None, last.question.answers)
    assert gold in (None, [titles[name] for name in last.question.gold_passages])
