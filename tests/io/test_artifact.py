"""A stage's file is current or says why not; an interrupted one resumes, and is never seen half-written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbtrain.config import Config
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.artifact import Artifact, Records, differing
from kbtrain.io.provenance import file_sha256, meta_path
from kbtrain.records import Evidence


def evidence(name: str) -> Evidence:
    return Evidence(name, "bm25", "query", ())


def test_it_resumes_after_the_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "evidence.jsonl"
    with pytest.raises(KeyboardInterrupt), Records(path, {"k": 3}) as out:
        out.add(evidence("one"))
        out.add(evidence("two"))
        raise KeyboardInterrupt
    partial = tmp_path / "evidence.jsonl.partial"
    with open(partial, "ab") as file:
        file.write(b'{"question_id": "thr')  # a kill in the middle of a line
    assert not path.exists()
    with Records(path, {"k": 3}) as out:
        assert out.n == 2
        out.add(evidence("three"))
        assert out.n == 3
    assert [e.question_id for e in jsonl.read(Evidence, path)] == ["one", "two", "three"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["evidence.jsonl"]


def test_records_of_another_key_are_dropped_or_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "evidence.jsonl"
    with pytest.raises(KeyboardInterrupt), Records(path, {"k": 3}) as out:
        out.add(evidence("one"))
        raise KeyboardInterrupt
    partial, note = tmp_path / "evidence.jsonl.partial", tmp_path / "evidence.jsonl.partial.key"
    whole, key = partial.read_bytes(), note.read_bytes()
    with pytest.raises(UserError, match=r"\.partial: begun with k = 3, now it is 4; set it back, or delete it$"):
        Records(path, {"k": 4}, "delete it")
    note.unlink()
    missing = r"the settings of its records \(evidence\.jsonl\.partial\.key\) are missing; delete it$"
    with pytest.raises(UserError, match=missing):
        Records(path, {"k": 3}, "delete it")
    note.write_bytes(key)
    assert partial.read_bytes() == whole
    with Records(path, {"k": 4}) as out:
        assert out.n == 0
    assert path.read_text() == ""


def test_a_growing_file_has_its_name_at_once_and_notes_what_is_new_in_its_key(tmp_path: Path) -> None:
    path = tmp_path / "evidence.jsonl"
    with Records(path, {"k": 3}, "delete it", growing=True) as out:
        out.add(evidence("one"))
        assert [e.question_id for e in jsonl.read(Evidence, path)] == ["one"]
    new = {"k": 3, "model_files": {"w": "1"}}
    Records(path, new, "delete it", growing=True).close()
    assert json.loads((tmp_path / "evidence.jsonl.key").read_text()) == new
    Records(path, {"k": 3}, "delete it", growing=True).close()  # the model is elsewhere now
    with pytest.raises(UserError, match='begun with model_files w = "1", now it is "2"'):
        Records(path, {"k": 3, "model_files": {"w": "2"}}, "delete it", growing=True)


class Settings(Config):
    n: int = 1
    place: str = "a"


@pytest.mark.parametrize("keyed", [False, True])
def test_a_file_is_current_only_by_the_same_settings_and_data(tmp_path: Path, keyed: bool) -> None:
    made, given = tmp_path / "x.jsonl", tmp_path / "in.jsonl"
    given.write_bytes(b"abc")

    def artifact(**settings: Any) -> Artifact:
        config = Settings(**settings)
        key = {"n": config.n, "in": given.read_text()} if keyed else None
        return Artifact(made, "pool", config, [given], key)

    assert artifact().why_not() == "missing"
    made.write_bytes(b"{}\n")
    assert artifact().why_not() == "not made by pool" and not artifact().is_current()  # an interrupted stage's
    artifact().finish({"counts": 3})
    assert artifact().is_current() and json.loads(meta_path(made).read_text())["counts"] == 3
    assert artifact(n=2).why_not() == "made with n = 1, now it is 2"
    assert artifact(place="b").is_current() == keyed
    assert artifact(place="b").why_not(frozenset({"place"})) == ""
    given.write_bytes(b"abd")
    assert artifact().why_not() == ('made with in = "abc", now it is "abd"' if keyed else "made from other data")
    given.write_bytes(b"abc")
    made.write_bytes(b"{ }\n")
    assert artifact().why_not() == "changed afterwards"


def test_a_setting_that_an_older_file_lacks_has_its_default(tmp_path: Path) -> None:
    made = tmp_path / "x.jsonl"
    made.write_bytes(b"{}\n")
    Artifact(made, "pool", {"n": 1}).finish()
    assert Artifact(made, "pool", Settings()).is_current()
    assert Artifact(made, "pool", Settings(place="b")).why_not() == 'made with place = "a", now it is "b"'


def test_an_edited_file_is_current_by_what_it_was_made_from(tmp_path: Path) -> None:
    card = tmp_path / "gate.json"
    card.write_text("{}")
    Artifact(card, "fit", {"members": [["a", "1"]]}).finish()
    card.write_text('{"thresholds": {}}')
    assert not Artifact(card, "fit", {"members": [["a", "1"]]}).is_current()
    assert Artifact(card, "fit", {"members": [("a", "1")]}, edited=True).is_current()
    assert not Artifact(card, "fit", {"members": [("a", "2")]}, edited=True).is_current()


@pytest.mark.parametrize("value", ["[]", '"x"', '{"in.jsonl": ["abc"]}', '{"a": "1", "a": "2"}', '{"a": NaN}'])
def test_damaged_meta_data_are_one_line(tmp_path: Path, value: str) -> None:
    made = tmp_path / "x.jsonl"
    made.write_bytes(b"{}\n")
    meta_path(made).write_text(f'{{"schema": 1, "stage": "s", "config": {{}}, "inputs": {value}}}')
    with pytest.raises(UserError, match=r"x\.jsonl\.meta\.json: field '(inputs|a)': .*again$"):
        Artifact(made, "s", {}, [made]).is_current()


def test_meta_data_without_inputs_are_those_of_other_data(tmp_path: Path) -> None:
    made = tmp_path / "x.jsonl"
    made.write_bytes(b"{}\n")
    meta_path(made).write_text(json.dumps({"schema": 1, "stage": "s", "config": {}, "sha256": file_sha256(made)}))
    assert Artifact(made, "s", {}, [made]).why_not() == "made from other data"


def test_settings_differ_by_name_and_files_only_where_both_sides_know_them() -> None:
    assert differing({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}}) == [("b.c", 2, 3)]
    assert differing({"a": 1}, {"a": 1, "model_files": {"x": "0"}}) == []
    assert differing({"a": 1, "model_files": {"x": "1"}}, {"a": 1, "model_files": {"x": "0"}}) == [
        ("model_files x", "1", "0")
    ]
    assert differing({"a": 1, "model_files": "1"}, {"a": 2, "model_files": "0"}) == [
        ("a", 1, 2),
        ("model_files", "1", "0"),
    ]
