"""An interrupted file of records goes on where it stopped, and is never seen half-written."""

from __future__ import annotations

from pathlib import Path

from kbtrain import jsonl
from kbtrain.record_file import RecordFile
from kbtrain.records import Evidence


def evidence(name: str) -> Evidence:
    return Evidence(name, "bm25", "query", ())


def test_it_goes_on_after_the_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "evidence.jsonl"
    with RecordFile(path, {"k": 3}) as out:
        out.add(evidence("one"))
        out.add(evidence("two"))
    partial = tmp_path / "evidence.jsonl.partial"
    with open(partial, "ab") as file:
        file.write(b'{"question_id": "thr')  # a kill in the middle of a line
    assert not path.exists()
    with RecordFile(path, {"k": 3}) as out:
        assert out.n == 2
        out.add(evidence("three"))
        out.finish()
    assert [e.question_id for e in jsonl.read(Evidence, path)] == ["one", "two", "three"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["evidence.jsonl"]


def test_with_other_options_it_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "evidence.jsonl"
    with RecordFile(path, {"k": 3}) as out:
        out.add(evidence("one"))
    with RecordFile(path, {"k": 4}) as out:
        assert out.n == 0
        out.finish()
    assert path.read_text() == ""
