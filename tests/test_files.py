"""Whatever the system refuses is one line that names the file, by whichever library it is said; nothing is lost."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.disk import full_disk

from kbtrain.dialogue.responses import Response, keep
from kbtrain.errors import UserError
from kbtrain.exit_code import exit_code
from kbtrain.files import append, check_regular_or_absent, errors_of, not_there, read_text, writing
from kbtrain.gates.score_stage import ScoreFile, Timing
from kbtrain.questions.collect import PassageWriter
from kbtrain.rag.seakr.trace import Spent, Trace, TraceFile
from kbtrain.records import Evidence, GateScore, Hit, Passage
from kbtrain.retrieval.retrieve_stage import EvidenceFile, open_index

LONG = "x" * 100_000
REFUSED = "too large for this disk|disk is full"


@pytest.mark.parametrize(
    ("file", "script"),
    [
        ("runs/my run/questions.jsonl", "data_gen/collect.py"),
        ("runs/my run/evidence.jsonl", "data_gen/retrieve.py"),
        ("runs/my run/samples.db", "data_gen/sample.py"),
        ("runs/my run/labels.jsonl", "data_gen/label.py"),
        ("runs/my run/examples/dev.jsonl", "data_gen/build.py"),
        ("runs/my run/outcomes.jsonl", "eval/end_to_end.py"),
    ],
)
def test_a_file_of_a_run_folder_that_is_missing_names_the_command_that_makes_it(file: str, script: str) -> None:
    with pytest.raises(UserError) as error:
        read_text(file)
    assert str(error.value) == f"{file}: no such file; run first: python {script} --run 'runs/my run'"
    assert (Path(__file__).parent.parent / script).is_file()


def test_a_file_of_ones_own_that_is_missing_names_no_command() -> None:
    assert not_there("questions.jsonl") == not_there("texts/dev.jsonl") == not_there("a/b.txt") == "no such file"


def _numpy(path: Path) -> None:
    np.save(path, np.zeros(100_000))


def _safetensors(path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(100_000)}, path)


def _torch(path: Path) -> None:
    import torch

    torch.save({"a": torch.zeros(100_000)}, path)


def _text(path: Path) -> None:
    path.write_text(LONG)


@pytest.mark.parametrize("write", [_numpy, _safetensors, _torch, _text])
def test_a_full_disk_is_one_line_whichever_library_writes(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "made.npy"
    with full_disk(), pytest.raises(UserError, match=rf"made\.npy: .*({REFUSED})"), errors_of(path):
        write(path)


def _score(path: Path) -> None:
    with ScoreFile(path, {}) as file:
        file.append([GateScore(LONG, "g", 1.0)], Timing(("g",), "dev", 1, 1.0))


def _evidence(path: Path) -> None:
    with EvidenceFile(path, {"k": 1}) as file:
        file.add(Evidence("q", "bm25", "a query", (Hit("p", "t", LONG, 1.0),)))
        file.finish()


def _passages(path: Path) -> None:
    with PassageWriter(path) as file:
        file.add([Passage("p", "t", LONG)])
        file.finish()


def _trace(path: Path) -> None:
    with TraceFile(path, {"a": 1}) as file:
        file.add(Trace("q", LONG, (), "seakr", 0.5, (), (), "done", "", False, 0.0, 0.0, Spent()))


def _response(path: Path) -> None:
    keep(path, [Response("t", LONG)])


@pytest.mark.parametrize("write", [_score, _evidence, _passages, _trace, _response])
def test_a_file_that_grows_names_itself_on_a_full_disk_and_goes_on_with_room(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "file.jsonl"
    with full_disk(), pytest.raises(UserError, match=rf"file\.jsonl\S*: .*({REFUSED})"):
        write(path)
    if write is _response:
        path.unlink()
    write(path)
    assert LONG in path.read_text() and path.read_text().count("\n") == 1


def test_an_index_on_a_full_disk_is_one_line_and_is_built_with_room(tmp_path: Path) -> None:
    from kbtrain import jsonl

    corpus = tmp_path / "passages.jsonl"
    jsonl.write(corpus, [Passage(str(i), f"Town {i}", f"A town of {i} people. " * 20) for i in range(40)])
    with full_disk(), pytest.raises(UserError, match=rf"bm25: .*({REFUSED})"):
        open_index("bm25", corpus, tmp_path / "bm25")
    assert len(open_index("bm25", corpus, tmp_path / "bm25").search(["town of 3 people"], 2)[0]) == 2


def test_what_an_open_file_still_holds_is_not_refused_again_at_its_end() -> None:
    with open("/dev/full", "a") as file, pytest.raises(UserError, match=r"^/dev/full: disk is full"):
        append(file, "a line\n")


def test_a_lock_holds_though_there_is_no_room_for_its_text(tmp_path: Path) -> None:
    target = tmp_path / "results.json"
    with full_disk(0), writing(target), pytest.raises(UserError, match="another process is writing"), writing(target):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "error: disk is full; free"),
        (PermissionError(errno.EACCES, "Permission denied", "/a/b"), "error: /a/b: permission denied; choose"),
        (OSError(errno.EMFILE, "Too many open files"), "error: too many open files; raise"),
    ],
)
def test_a_command_says_in_one_line_what_no_writer_named(
    error: OSError, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        raise error

    assert exit_code(work, "") == 2
    shown = capsys.readouterr().err
    assert shown.startswith(said) and shown.count("\n") == 1


def test_a_fault_of_the_program_keeps_its_traceback() -> None:
    def work() -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        exit_code(work, "")


def test_output_that_nobody_takes_is_one_line() -> None:
    command = [sys.executable, "-m", "kbtrain.cli", "ls", "launch"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "error: disk is full; free some space and run the same command again\n",
    )


def test_a_path_to_be_written_may_be_absent_and_else_is_a_regular_file(tmp_path):
    check_regular_or_absent(tmp_path / "new")
    (tmp_path / "old").write_text("")
    check_regular_or_absent(tmp_path / "old")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name, said in (("pipe", "a pipe"), ("link", "no such file"), ("", "a folder")):
        with pytest.raises(UserError, match=said):
            check_regular_or_absent(tmp_path / name)
