"""Metadata beside a file: complete, true to the bytes, written whole."""

from __future__ import annotations

import hashlib
import json
import shutil
import time

import pytest

from kbtrain.config import Config
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.provenance import (
    Artifact,
    Records,
    check_unchanged,
    differing,
    file_sha256,
    meta_path,
    read_meta,
    unchanged,
    write_meta,
)
from kbtrain.records import Evidence

KEYS = {
    "schema", "stage", "config", "inputs", "sha256", "n_records", "packages", "git_commit",
    "git_dirty", "python", "platform", "device", "wall_seconds", "peak_rss_mb",
}  # fmt: skip


def test_meta_names_the_bytes_of_the_file_and_of_each_input(tmp_path):
    made, given = tmp_path / "labels.jsonl", tmp_path / "questions.jsonl"
    made.write_bytes(b'{"a": 1}\n{"a": 2}\n\n')
    given.write_bytes(b"abc")
    write_meta(made, stage="label", config={"tau": 0.2, "path": given}, inputs=[given], started=time.monotonic() - 5)
    meta = read_meta(made)
    assert set(meta) == KEYS
    # the well-known SHA-256 of "abc"
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert meta["inputs"] == {"questions.jsonl": expected}
    assert meta["sha256"] == hashlib.sha256(made.read_bytes()).hexdigest()
    assert meta["n_records"] == 2
    assert meta["config"] == {"tau": 0.2, "path": str(given)}
    assert 5 <= meta["wall_seconds"] < 60
    assert meta["peak_rss_mb"] > 5


def test_hash_of_a_folder_changes_with_a_file_and_with_a_name(tmp_path):
    folder = tmp_path / "gate"
    folder.mkdir()
    (folder / "a").write_text("1")
    first = file_sha256(folder)
    assert first == file_sha256(folder)
    (folder / "a").rename(folder / "b")
    second = file_sha256(folder)
    (folder / "b").write_text("2")
    assert len({first, second, file_sha256(folder)}) == 3


@pytest.mark.parametrize(
    "text",
    [None, "{", "[]", '{"schema": 99}', '{"schema": 1, "inputs": {"x": 1}}', '{"schema": 1, "inputs": []}',
     '{"schema": 1, "schema": 1}', '{"schema": NaN}'],
)  # fmt: skip
def test_absent_broken_or_foreign_meta_is_one_line(tmp_path, text):
    path = tmp_path / "f.jsonl"
    if text is not None:
        meta_path(path).write_text(text)
    remedy = "run the stage" if text is None else "delete it, and run the stage"
    told = rf"f\.jsonl\.meta\.json(:1)?: [^\n]*; {remedy} that writes f\.jsonl again$"
    with pytest.raises(UserError, match=told):
        read_meta(path)


def test_a_file_that_was_changed_is_told_from_one_that_was_not(tmp_path):
    made = tmp_path / "made.jsonl"
    made.write_text("1\n2\n")
    assert unchanged(made)  # no metadata: a user's own
    write_meta(made, stage="s", config={}, inputs=[])
    assert unchanged(made)
    copy = tmp_path / "copy" / "made.jsonl"
    copy.parent.mkdir()
    for path in (made, meta_path(made)):
        shutil.copyfile(path, copy.with_name(path.name))
    assert unchanged(copy)  # another time, the same bytes
    for other in ("1\n", "1\n3\n", "1\n2\n3\n"):
        made.write_text(other)
        assert not unchanged(made)
    with pytest.raises(UserError, match=r"made\.jsonl: was changed since s made it; run that again, or delete made"):
        check_unchanged(tmp_path / "none", copy, made)


def evidence(name):
    return Evidence(name, "bm25", "query", ())


def test_it_resumes_after_the_last_whole_line(tmp_path):
    path = tmp_path / "evidence.jsonl"
    with pytest.raises(KeyboardInterrupt), Records(path, {"k": 3}) as out:
        out.add(evidence("one"))
        out.add(evidence("two"))
        raise KeyboardInterrupt
    with open(tmp_path / "evidence.jsonl.partial", "ab") as file:
        file.write(b'{"question_id": "thr')  # a kill in the middle of a line
    assert not path.exists()
    with Records(path, {"k": 3}) as out:
        assert out.n == 2
        out.add(evidence("three"))
        assert out.n == 3
    assert [e.question_id for e in jsonl.read(Evidence, path)] == ["one", "two", "three"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["evidence.jsonl"]


def test_records_of_another_key_are_dropped_or_refused_with_the_remedy(tmp_path):
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


def test_a_growing_file_has_its_name_at_once_and_notes_what_is_new_in_its_key(tmp_path):
    path = tmp_path / "evidence.jsonl"
    with Records(path, {"k": 3}, "delete it", growing=True) as out:
        out.add(evidence("one"))
        assert [e.question_id for e in jsonl.read(Evidence, path)] == ["one"]
    new = {"k": 3, "model_files": {"w": "1"}}
    Records(path, new, "delete it", growing=True).close()
    assert json.loads((tmp_path / "evidence.jsonl.key").read_text()) == new
    Records(path, {"k": 3}, "delete it", growing=True).close()  # the model is elsewhere now
    with pytest.raises(UserError, match=r'begun with model_files\.w = "1", now it is "2"'):
        Records(path, {"k": 3, "model_files": {"w": "2"}}, "delete it", growing=True)


class Settings(Config):
    n: int = 1
    place: str = "a"


@pytest.mark.parametrize("keyed", [False, True])
def test_a_file_is_current_only_by_the_same_settings_and_data(tmp_path, keyed):
    made, given = tmp_path / "x.jsonl", tmp_path / "in.jsonl"
    given.write_bytes(b"abc")

    def artifact(**settings):
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


def test_a_setting_that_an_older_file_lacks_has_its_default(tmp_path):
    made = tmp_path / "x.jsonl"
    made.write_bytes(b"{}\n")
    Artifact(made, "pool", {"n": 1}).finish()
    assert Artifact(made, "pool", Settings()).is_current()
    assert Artifact(made, "pool", Settings(place="b")).why_not() == 'made with place = "a", now it is "b"'


def test_an_edited_file_is_current_by_what_it_was_made_from(tmp_path):
    card = tmp_path / "gate.json"
    card.write_text("{}")
    Artifact(card, "fit", {"members": [["a", "1"]]}).finish()
    card.write_text('{"thresholds": {}}')
    assert not Artifact(card, "fit", {"members": [["a", "1"]]}).is_current()
    assert Artifact(card, "fit", {"members": [("a", "1")]}, edited=True).is_current()
    assert not Artifact(card, "fit", {"members": [("a", "2")]}, edited=True).is_current()


def test_settings_differ_by_name_and_files_only_where_both_sides_know_them():
    assert differing({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}}) == [("b.c", 2, 3)]
    assert differing({"a": 1}, {"a": 1, "model_files": {"x": "0"}}) == []
    files = differing({"a": 1, "model_files": {"x": "1"}}, {"a": 1, "model_files": {"x": "0"}})
    assert files == [("model_files.x", "1", "0")]
    both = differing({"a": 1, "model_files": "1"}, {"a": 2, "model_files": "0"})
    assert both == [("a", 1, 2), ("model_files", "1", "0")]
