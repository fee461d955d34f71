"""Meta data beside a file: complete, true to the bytes, written whole."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kbtrain.errors import UserError
from kbtrain.io.provenance import (
    check_unchanged,
    file_sha256,
    git_state,
    meta_path,
    read_meta,
    unchanged,
    write_meta,
)

KEYS = {
    "schema", "stage", "config", "inputs", "sha256", "n_records", "packages", "git_commit",
    "git_dirty", "python", "platform", "device", "wall_seconds", "peak_rss_mb",
}  # fmt: skip


def test_meta_names_the_bytes_of_the_file_and_of_each_input(tmp_path: Path) -> None:
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


def test_extra_keys_are_kept_and_may_replace_ours(tmp_path: Path) -> None:
    made = tmp_path / "x.bin"
    made.write_bytes(b"x")
    write_meta(made, stage="s", config=None, inputs=[], extra={"seed": 7, "device": "A100"})
    meta = read_meta(made)
    assert (meta["seed"], meta["device"], meta["n_records"], meta["wall_seconds"]) == (7, "A100", None, None)


def test_inputs_of_the_same_name_are_both_listed(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "q.jsonl", tmp_path / "b" / "q.jsonl"]
    for path in paths:
        path.parent.mkdir()
        path.write_text(path.parent.name)
    write_meta(paths[0], stage="s", config=None, inputs=paths)
    assert set(read_meta(paths[0])["inputs"]) == {str(path) for path in paths}


def test_hash_of_a_folder_changes_with_a_file_and_with_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "gate"
    folder.mkdir()
    (folder / "a").write_text("1")
    first = file_sha256(folder)
    assert first == file_sha256(folder)
    (folder / "a").rename(folder / "b")
    second = file_sha256(folder)
    (folder / "b").write_text("2")
    assert len({first, second, file_sha256(folder)}) == 3


def test_a_missing_input_is_one_line_and_writes_nothing(tmp_path: Path) -> None:
    made = tmp_path / "x"
    made.write_text("x")
    with pytest.raises(UserError, match=r"gone\.jsonl: no such file$"):
        write_meta(made, stage="s", config=None, inputs=[tmp_path / "gone.jsonl"])
    assert not meta_path(made).exists()


@pytest.mark.parametrize(
    "text",
    [None, "{", "[]", '{"schema": 99}', '{"schema": 1, "inputs": {"x": 1}}'],
)  # fmt: skip
def test_absent_broken_or_foreign_meta_is_one_line(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "f.jsonl"
    if text is not None:
        meta_path(path).write_text(text)
    remedy = "run the stage" if text is None else "delete it, and run the stage"
    with pytest.raises(
        UserError, match=rf"f\.jsonl\.meta\.json(:1)?: .*; {remedy} that writes f\.jsonl again$"
    ) as caught:
        read_meta(path)
    assert "\n" not in str(caught.value)


def test_git_commit_is_this_clones_own_or_null() -> None:
    commit = git_state()["git_commit"]
    assert commit is None or (len(commit) == 40 and int(commit, 16) >= 0)


def test_provenance_imports_nothing_heavy() -> None:
    code = "import sys, kbtrain.io.provenance; print([m for m in ('torch', 'numpy', 'sklearn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_meta_is_plain_json_with_one_line_a_key(tmp_path: Path) -> None:
    made = tmp_path / "x"
    made.write_text("x")
    write_meta(made, stage="s", config={"name": "Zürich"}, inputs=[])
    text = meta_path(made).read_text(encoding="utf-8")
    assert "Zürich" in text and json.loads(text)["stage"] == "s"


def test_a_file_that_was_changed_is_told_from_one_that_was_not(tmp_path: Path) -> None:
    made = tmp_path / "made.jsonl"
    made.write_text("1\n2\n")
    assert unchanged(made)  # no meta data: a user's own
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


def test_time_is_measured_by_a_clock_that_nobody_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "x.jsonl"
    made.write_bytes(b"{}\n")
    started = time.monotonic()
    monkeypatch.setattr(time, "time", lambda: 0.0)  # the wall clock was set back
    write_meta(made, stage="s", config=None, inputs=[], started=started)
    assert 0 <= read_meta(made)["wall_seconds"] < 60
