"""collect.py: checked questions in a run folder, once."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from kbtrain import jsonl
from kbtrain.provenance import file_sha256, read_meta
from kbtrain.questions.atlas import atlas_file
from kbtrain.records import Question

SCRIPT = Path(__file__).parents[2] / "data_gen" / "collect.py"


def collect(*options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, options)], capture_output=True, text=True)


def test_the_atlas_comes_whole_with_its_corpus_and_provenance(tmp_path: Path) -> None:
    done = collect("--run", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "questions.jsonl").read_bytes() == atlas_file("questions").read_bytes()
    assert (tmp_path / "passages.jsonl").read_bytes() == atlas_file("passages").read_bytes()
    meta = read_meta(tmp_path / "questions.jsonl")
    assert (meta["stage"], meta["n_records"]) == ("collect", sum(meta["splits"].values()))
    files = [atlas_file("questions"), atlas_file("passages")]
    assert meta["inputs"] == {file.name: file_sha256(file) for file in files}
    before = (tmp_path / "questions.jsonl").stat().st_mtime_ns
    again = collect("--run", tmp_path)
    assert "there already" in again.stdout
    assert (tmp_path / "questions.jsonl").stat().st_mtime_ns == before


def test_limits_take_the_first_questions_of_each_split(tmp_path: Path) -> None:
    done = collect("--run", tmp_path, "--train", 30, "--dev", 5, "--test", 0)
    assert done.returncode == 0, done.stderr
    questions = list(jsonl.read(Question, tmp_path / "questions.jsonl"))
    assert Counter(q.split for q in questions) == {"train": 30, "dev": 5}
    source = [q for q in jsonl.read(Question, atlas_file("questions")) if q.split == "train"]
    assert [q for q in questions if q.split == "train"] == source[:30]


def test_a_changed_source_is_collected_again(tmp_path: Path) -> None:
    source = tmp_path / "mine.jsonl"
    source.write_text('{"question": "a?", "answers": "b"}\n')
    options = ("--run", tmp_path / "run", "--dataset", "jsonl", "--path", source)
    assert collect(*options).returncode == 0
    source.write_text('{"question": "c?", "answers": "d"}\n')
    assert collect(*options).returncode == 0
    assert [q.text for q in jsonl.read(Question, tmp_path / "run" / "questions.jsonl")] == ["c?"]


def test_bad_input_is_one_line_and_leaves_no_file(tmp_path: Path) -> None:
    source = tmp_path / "mine.jsonl"
    source.write_text('{"question": "a?", "answers": "b"}\n{"question": "c?", "answers": []}\n')
    for options, message in (
        (("--dataset", "jsonl", "--path", source), "mine.jsonl:2: field 'answers'"),
        (("--dataset", "atlass"), "did you mean 'atlas'"),
        (("--dataset", "jsonl", "--path", tmp_path / "none.jsonl"), "none.jsonl: no such file"),
        (("--dataset", "jsonl"), "needs a path"),
        (("--train", 0, "--dev", 0, "--test", 0), "no questions left"),
        (("--datset", "atlas"), "did you mean '--dataset'"),
    ):
        done = collect("--run", tmp_path / "run", *options)
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert (done.returncode, len(errors)) == (2, 1), done.stderr
        assert message in errors[0]
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "run" / "questions.jsonl").exists()
