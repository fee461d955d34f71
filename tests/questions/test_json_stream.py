"""JSON documents read in pieces: the same values as the whole, and the line of every record and error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbtrain.errors import UserError
from kbtrain.io import text_files
from kbtrain.questions.files import DataFile, data_files
from kbtrain.questions.tables import json_rows, rows_by_key, rows_under


def file_of(tmp_path: Path, content: str, name: str = "x.json") -> DataFile:
    (tmp_path / name).write_text(content, encoding="utf-8")
    return next(data_files(tmp_path / name, (".json",)))


RECORDS: list[dict[str, Any]] = [
    {"a": "苏黎世" * 7, "b": [1, 2.5e-3, -7, True, None, {"c": '}],"\\'}]}, {}, {"n": 12345678901234567890},
    {"s": "\u2028"},
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1 << 16])
@pytest.mark.parametrize("indent", [None, 0, 3])
def test_any_chunk_size_gives_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, indent: int | None
) -> None:
    monkeypatch.setattr(text_files, "CHUNK", size)
    as_list = json.dumps(RECORDS, ensure_ascii=False, indent=indent)
    assert [row.data for row in json_rows(file_of(tmp_path, as_list))] == RECORDS
    inside = json.dumps({"v": [[1], {"x": "]"}], "data": RECORDS, "w": 3}, indent=indent)
    assert [row.data for row in rows_under(file_of(tmp_path, inside), "data")] == RECORDS
    keyed = {str(i): record for i, record in enumerate(RECORDS)}
    assert (
        dict((key, row.data) for key, row in rows_by_key(file_of(tmp_path, json.dumps(keyed, indent=indent)))) == keyed
    )


def test_each_record_knows_the_line_it_begins_in(tmp_path: Path) -> None:
    content = json.dumps(RECORDS, indent=1)
    lines = [row.line for row in json_rows(file_of(tmp_path, content))]
    assert [content.splitlines()[line - 1][:2] for line in lines] == [" {"] * 4
    assert lines[0] == 2 and lines == sorted(set(lines))


@pytest.mark.parametrize("size", [1, 5, 1 << 16])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"a": 1},\n {"a": tru}]', r"x\.json:2: broken JSON \(Expecting value\)"),
        ('[{"a": 1},\n {"a": "x}]', r"x\.json:2: broken JSON \(.*Unterminated string"),
        ('[{"a": 1}\n {"a": 2}]', r"x\.json:2: broken JSON \(expected ',' or ']', found '\{'\)"),
        ('[{"a": 1},\n', r"x\.json:2: broken JSON \(the file ends too early"),
        ('[{"a": 1}]\n\n]', r"x\.json:3: broken JSON \(something follows"),
        ('[{"a": 1},\n3]', r"x\.json:2: field '\[1\]': expected a JSON object, found int"),
        ('[{"a": 1},\n]', r"x\.json:2: broken JSON"),
        ('[{"a": 1},\n{"a": [{"b": 2, "b": 3}]}]', r"x\.json:2: broken JSON \(field 'b': duplicate\)"),
        ("[" * 100_000, r"x\.json:1: broken JSON \(nested too deeply\)"),
        ("[" + "9" * 5000 + "]", r"x\.json:1: broken JSON \(Exceeds the limit"),
    ],
)
def test_an_error_names_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, content: str, message: str
) -> None:
    monkeypatch.setattr(text_files, "CHUNK", size)
    with pytest.raises(UserError, match=message):
        list(json_rows(file_of(tmp_path, content)))


def test_a_record_longer_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbtrain.questions.tables.MAX_RECORD", 1 << 18)
    with pytest.raises(UserError, match="a record of more than"):
        list(json_rows(file_of(tmp_path, '[{"a": "' + "x" * (1 << 20) + '"}]')))
