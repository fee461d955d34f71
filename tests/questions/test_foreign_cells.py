"""Cells of other people's tables: what nobody reads, dates, decimals, JSON, tabs, other names, no header."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from kbtrain.errors import UserError
from kbtrain.questions.base import Columns, Reading
from kbtrain.questions.catalogue import load
from kbtrain.questions.checks import near_duplicates
from kbtrain.records import Passage, Question
from kbtrain.retrieval.corpus import read_passages
from kbtrain.retrieval.tokens import Tokens


def answers(kind: str, path: Path, text: str | None = None, **reading: Any) -> list[tuple[str, ...]]:
    if text is not None:
        path.write_text(text, encoding="utf-8")
    return [one.question.answers for one in load(kind, path, Reading(**reading))]


@pytest.mark.parametrize("name", ["x.jsonl", "x.json"])
def test_nan_is_a_missing_value(tmp_path: Path, name: str) -> None:
    row = '{"question": "Who?", "answer": "Ann", "score": NaN, "more": [NaN], "hops": NaN}'
    columns = Columns({"text": "question", "answers": "answer"})
    assert answers("jsonl", tmp_path / name, f"[{row}]" if name == "x.json" else row, columns=columns) == [("Ann",)]
    empty = row.replace('"Ann"', "NaN")
    assert answers("jsonl", tmp_path / name, f"[{empty}]" if name == "x.json" else empty, columns=columns) == [()]


def test_values_of_parquet_are_written_as_people_write_them(tmp_path: Path) -> None:
    values = {
        "1969-07-20": datetime.date(1969, 7, 20), "1969-07-21": datetime.datetime(1969, 7, 21),
        "1984": Decimal("1984.00"), "2.5": Decimal("2.50"), "1984.5": 1984.5,
    }  # fmt: skip
    for text, value in values.items():
        table = pyarrow.Table.from_pylist([{"question": "When?", "answer": value, "score": float("nan")}])
        pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
        assert answers("jsonl", tmp_path / "x.parquet", columns=Columns({"answers": "answer"})) == [(text,)]
    single = {"question": ["How much?"], "answers": pyarrow.array([[0.1, 2.0]], pyarrow.list_(pyarrow.float32()))}
    pyarrow.parquet.write_table(pyarrow.table(single), tmp_path / "x.parquet")
    assert answers("jsonl", tmp_path / "x.parquet") == [("0.1", "2")]


@pytest.mark.parametrize(
    "cell", ['{"text": ["Ann", "A."], "start": [1, 2]}', "{'text': array(['Ann', 'A.'], dtype=object)}"]
)
def test_json_and_pythons_objects_in_a_cell_are_reached_into(tmp_path: Path, cell: str) -> None:
    quoted = cell.replace('"', '""')
    table = f'question,answers\nWho?,"{quoted}"\n'
    reached = answers("csv", tmp_path / "x.csv", table, columns=Columns({"answers": "answers.text"}))
    assert reached == [("Ann", "A.")]
    with pytest.raises(UserError, match=r"x\.csv:2: field 'answers': an object of text.*answers\.text"):
        answers("csv", tmp_path / "x.csv", table)


def test_tabs_in_a_csv_are_seen(tmp_path: Path) -> None:
    table = 'question\tanswer\nWho, and when?\t"Ann, once"\n'
    assert answers("csv", tmp_path / "x.csv", table) == [("Ann, once",)]


def test_the_id_of_beir_is_an_id(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d7", "title": "T", "text": "x", "metadata": {}}\n')
    assert list(read_passages(tmp_path / "corpus.jsonl")) == [Passage("d7", "T", "x")]
    row = {"_id": "q3", "text": "Who?", "answers": ["Ann"]}
    for columns in (Columns(), Columns({"text": "text"})):
        (tmp_path / "queries.jsonl").write_text(json.dumps(row))
        (one,) = load("jsonl", tmp_path / "queries.jsonl", Reading(columns=columns))
        assert one.question.id == "q3"


def test_a_table_without_a_header_is_not_answered_by_a_map_that_loses_its_first_row(tmp_path: Path) -> None:
    (tmp_path / "psgs.tsv").write_text("1\tAaron is a prophet of the Bible, and more.\tAaron\n2\tBo was.\tBo\n")
    with pytest.raises(UserError, match="missing; the first line is a passage") as caught:
        list(read_passages(tmp_path / "psgs.tsv"))
    assert "--columns" not in str(caught.value)
    with pytest.raises(UserError, match="missing; the first line is a question"):
        answers("csv", tmp_path / "qa.tsv", "who sings?\tAnn\nwho plays?\tBo\n")


def test_a_split_by_number_is_refused_with_remedies_that_help(tmp_path: Path) -> None:
    """CRAG's: 0 and 1."""
    row = {"query": "who?", "answer": "Ann", "alt_ans": ["A."], "split": 0, "question_type": "set"}
    path = tmp_path / "crag.jsonl"
    path.write_text("".join(json.dumps({**row, "query": f"who {i}?"}) + "\n" for i in range(30)))
    columns = Columns({"text": "query", "answers": ["answer", "alt_ans"], "relation": "question_type"})
    with pytest.raises(UserError, match=r"field 'split': expected train, dev or test, found 0; .*--split.*--shares"):
        answers("jsonl", path, columns=columns)
    for reading in (Reading("dev", columns=columns), Reading(columns=columns, shares=(0.5, 0.25, 0.25))):
        found = [one.question for one in load("jsonl", path, reading)]
        assert {q.split for q in found} == ({"dev"} if reading.split else {"train", "dev", "test"})
        assert (found[0].answers, found[0].relation) == (("Ann", "A."), "set")


def test_short_repeats_are_near_duplicates() -> None:
    """Signs and articles do not count, however much of a short text they are."""
    rest = [Question(f"r{i}", f"What is the name of thing {i}?", ("a",), "train", "d") for i in range(9)]
    twins = [Question("a", "Who?", ("x",), "train", "d"), Question("b", "the who", ("x",), "test", "d")]
    assert [(p.id, p.other_id, p.cosine) for p in near_duplicates([*rest, *twins])] == [("a", "b", 1.0)]


def test_the_turkish_capital_i_is_an_i() -> None:
    assert Tokens().words("İstanbul İZMİR") == Tokens().words("istanbul izmir")
