"""Files of a data set: archives, folders, splits by names; JSON of any size, one record at a time."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from typing import Any

import pytest
from native_files import ALIASES, NATIVE

from kbtrain.errors import UserError
from kbtrain.io import text_files
from kbtrain.questions.base import Reading
from kbtrain.questions.catalogue import load
from kbtrain.questions.files import SPLITS, data_files, split_word
from kbtrain.questions.tables import json_rows, rows_by_key, rows_under

MMLU = {
    "data/README.txt": "not a table", "data/dev/anatomy_dev.csv": "What?,a,b,c,d,A\n",
    "data/val/anatomy_val.csv": "Which?,a,b,c,d,B\n",
    "data/test/anatomy_test.csv": 'Who?,"a, b",b,c,d,C\nWhy?,a,b,c,d,D\n',
    "data/auxiliary_train/race.csv": "When?,a,b,c,d,A\n", "__MACOSX/data/dev/._anatomy_dev.csv": "\x00",
}  # fmt: skip


def packed(tmp_path, kind, members=MMLU):
    path = tmp_path / f"data.{kind}"
    if kind == "folder":
        for name, text in members.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
    elif kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in members.items():
                archive.writestr(name, text)
    else:
        with tarfile.open(path, "w:gz" if kind == "tar.gz" else "w") as archive:
            for name, text in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize("kind", ["folder", "zip", "tar", "tar.gz"])
def test_an_archive_gives_all_its_tables_and_their_splits(tmp_path, kind):
    found = list(load("mmlu", packed(tmp_path, kind)))
    assert {one.question.id: one.question.split for one in found} == {
        "mmlu/dev/anatomy/0": "train", "mmlu/val/anatomy/0": "dev", "mmlu/test/anatomy/0": "test",
        "mmlu/test/anatomy/1": "test", "mmlu/train/race/0": "train",
    }  # fmt: skip
    second = next(one for one in found if one.question.id == "mmlu/test/anatomy/1")
    assert second.file.endswith(f"data.{kind}/data/test/anatomy_test.csv") and second.line == 2


def test_only_names_the_members_to_read_and_split_overrides(tmp_path):
    path = packed(tmp_path, "zip")
    assert [one.question.id for one in load("mmlu", path, Reading(only="*/val/*"))] == ["mmlu/val/anatomy/0"]
    assert {one.question.split for one in load("mmlu", path, Reading(split="train"))} == {"train"}
    (tmp_path / "x.csv").write_text(MMLU["data/val/anatomy_val.csv"])
    with pytest.raises(UserError, match=r"x\.csv: one file; only is for archives and folders"):
        list(load("mmlu", tmp_path / "x.csv", Reading(only="*val*")))
    with pytest.raises(UserError, match=r"data\.zip: no file in it matches '\*/vall/\*' and ends in \.csv"):
        list(load("mmlu", path, Reading(only="*/vall/*")))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (
            "x.jsonl.gz",
            gzip.compress(b'{"question": "a", "answer": ["b"]}\n' * 999, mtime=0)[:-30],
            "gz: cannot be read",
        ),
        ("x.jsonl.gz", gzip.compress(b'{"question": "a"}\n', mtime=0)[:9] + b"\xff" * 40, "gz: cannot be read"),
        ("x.zip", b"PK\x03\x04 but no archive", "x.zip: not a complete zip archive; get the file again"),
        ("x.tar.gz", b"neither", "x.tar.gz: cannot be read"),
    ],
)
def test_a_damaged_archive_is_one_line(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError) as caught:
        list(load("nq_open", tmp_path / name))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_damaged_member_is_one_line(tmp_path):
    path = packed(tmp_path, "zip")
    damaged = bytearray(path.read_bytes())
    at = damaged.index(b"anatomy_dev.csv") + len("anatomy_dev.csv")
    damaged[at : at + 6] = b"\x00\xff\x00\xff\x00\xff"
    path.write_bytes(bytes(damaged))
    with pytest.raises(UserError, match=r"data\.zip/data/dev/anatomy_dev\.csv: cannot be read"):
        list(load("mmlu", path, Reading(only="*/dev/*")))


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("nq-open.dev.jsonl", "dev"), ("me_validation.ann.json", "validation"),
        ("hotpotqa_train100_native.json", "train"),
        ("data/val/anatomy_val.csv", "val"), ("data/auxiliary_train/race.csv", "train"), ("popqa.json", ""),
        ("test/mine.csv", "test"), ("latest_contest.json", ""), ("TEST/x.csv", "test"),
    ],
)  # fmt: skip
def test_names_tell_the_split(name, word):
    assert split_word(name, SPLITS) == word


def test_a_name_that_tells_two_splits_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"train-test\.jsonl: its name has two splits \(train, test\); set split"):
        split_word("x/train-test.jsonl", SPLITS)
    (tmp_path / "train-test.jsonl").write_text('{"question": "a?", "answers": "b"}\n')
    for reading in (Reading(split="dev"), Reading(shares=(0.0, 1.0, 0.0))):
        assert next(load("jsonl", tmp_path / "train-test.jsonl", reading)).question.split == "dev"


def test_2wikimultihopqa_finds_its_aliases_in_the_archive(tmp_path):
    native = NATIVE["2wikimultihopqa"]
    path = packed(tmp_path, "zip", {"ids/dev.json": native.render(native.records), "ids/id_aliases.json": ALIASES})
    assert next(load("2wikimultihopqa", path)).question.answers == ("Person 0", "P. Zero", "Zeroan")


def file_of(tmp_path, content, name="x.json"):
    (tmp_path / name).write_text(content, encoding="utf-8")
    return next(data_files(tmp_path / name, (".json",)))


RECORDS: list[dict[str, Any]] = [
    {"a": "苏黎世" * 7, "b": [1, 2.5e-3, -7, True, None, {"c": '}],"\\'}]}, {}, {"n": 12345678901234567890},
    {"s": "\u2028"},
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1 << 16])
@pytest.mark.parametrize("indent", [None, 0, 3])
def test_any_chunk_size_gives_the_same_records(tmp_path, monkeypatch, size, indent):
    monkeypatch.setattr(text_files, "CHUNK", size)
    as_list = json.dumps(RECORDS, ensure_ascii=False, indent=indent)
    assert [row.data for row in json_rows(file_of(tmp_path, as_list))] == RECORDS
    inside = json.dumps({"v": [[1], {"x": "]"}], "data": RECORDS, "w": 3}, indent=indent)
    assert [row.data for row in rows_under(file_of(tmp_path, inside), "data")] == RECORDS
    keyed = {str(i): record for i, record in enumerate(RECORDS)}
    rows = rows_by_key(file_of(tmp_path, json.dumps(keyed, indent=indent)))
    assert {key: row.data for key, row in rows} == keyed


def test_each_record_knows_the_line_it_begins_in(tmp_path):
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
def test_an_error_names_its_line(tmp_path, monkeypatch, size, content, message):
    monkeypatch.setattr(text_files, "CHUNK", size)
    with pytest.raises(UserError, match=message):
        list(json_rows(file_of(tmp_path, content)))


def test_a_record_longer_than_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("kbtrain.questions.tables.MAX_RECORD", 1 << 18)
    with pytest.raises(UserError, match="a record of more than"):
        list(json_rows(file_of(tmp_path, '[{"a": "' + "x" * (1 << 20) + '"}]')))
