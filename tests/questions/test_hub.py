"""Hugging Face datasets: saved folders and local files, all splits, by a column map."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest

from kbtrain.errors import UserError
from kbtrain.questions.base import Columns, Reading
from kbtrain.questions.load import load

ROWS = {
    "question": ["What is it?", "Where is it?"], "answers": [{"text": ["a", "b"]}, {"text": ["c"]}], "views": [3, 5]
}  # fmt: skip
COLUMNS = Columns({"answers": "answers.text", "popularity": "views"})


def test_a_saved_data_set_comes_with_its_splits(tmp_path: Path) -> None:
    one = datasets.Dataset.from_dict(ROWS)
    datasets.DatasetDict({"train": one, "validation": one.select([0])}).save_to_disk(str(tmp_path / "saved"))
    found = [loaded.question for loaded in load("datasets", tmp_path / "saved", Reading(columns=COLUMNS))]
    assert [(q.id, q.split, q.answers, q.popularity) for q in found] == [
        ("saved/train/1", "train", ("a", "b"), 3.0), ("saved/train/2", "train", ("c",), 5.0),
        ("saved/validation/1", "dev", ("a", "b"), 3.0),
    ]  # fmt: skip
    only = load("datasets", tmp_path / "saved", Reading(only="validation", split="test", columns=COLUMNS))
    assert [loaded.question.split for loaded in only] == ["test"]
    with pytest.raises(UserError, match="no split matches 'dev'; valid: train, validation"):
        list(load("datasets", tmp_path / "saved", Reading(only="dev", columns=COLUMNS)))


def test_a_folder_of_parquet_files_is_streamed(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    datasets.Dataset.from_dict(ROWS).to_parquet(str(tmp_path / "set" / "train.parquet"))
    found = list(load("datasets", tmp_path / "set", Reading(columns=COLUMNS)))
    assert [loaded.question.answers for loaded in found] == [("a", "b"), ("c",)]
    datasets.Dataset.from_dict({"question": ["Who?"], "answer": ["d"]}).to_parquet(
        str(tmp_path / "set" / "other.parquet")
    )
    alone = list(load("datasets", tmp_path / "set" / "other.parquet", Reading()))
    assert [loaded.question.answers for loaded in alone] == [("d",)]


def test_what_has_no_splits_is_of_the_split_that_its_name_tells(tmp_path: Path) -> None:
    one = datasets.Dataset.from_dict({"question": ["Who?"], "answer": ["d"]})
    for name in ("train", "validation-00000-of-00001", "test", "other"):
        one.to_parquet(str(tmp_path / f"{name}.parquet"))
    datasets.Dataset.from_dict(one.to_dict(), split="train").save_to_disk(str(tmp_path / "saved"))
    wanted = {"train.parquet": "train", "validation-00000-of-00001.parquet": "dev", "test.parquet": "test",
              "other.parquet": "test", "saved": "train"}  # fmt: skip
    assert {name: next(load("datasets", tmp_path / name)).question.split for name in wanted} == wanted
    (tmp_path / "test.parquet").rename(tmp_path / "train-test.parquet")
    with pytest.raises(UserError, match=r"train-test\.parquet: its name has two splits \(train, test\); set split"):
        list(load("datasets", tmp_path / "train-test.parquet"))
    taken = next(load("datasets", tmp_path / "train-test.parquet", Reading(split="dev")))
    assert taken.question.split == "dev"


def test_a_bad_row_or_a_missing_set_is_one_line(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({**ROWS, "question": ["What?", None]}).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(UserError, match=r"saved/test:2: field 'question': expected text, found null"):
        list(load("datasets", tmp_path / "saved", Reading(columns=COLUMNS)))
    with pytest.raises(UserError) as caught:
        list(load("datasets", tmp_path / "nowhere", Reading(columns=COLUMNS)))
    assert "not a data set that can be loaded" in str(caught.value) and "\n" not in str(caught.value)
