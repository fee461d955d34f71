"""Whatever the system refuses is one line that names the file, by whichever library it is said; nothing is lost."""

import contextlib
import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.files import full_disk

from kbtrain.errors import UserError
from kbtrain.gates.scoring import ScoredChunk, ScoreFile, Timing
from kbtrain.io.files import (
    beside,
    errors_of,
    has_content,
    missing_file_message,
    path_exists,
    put_in_place,
    replacing,
    writing,
)
from kbtrain.io.provenance import Records, meta_path
from kbtrain.io.text_files import read_text
from kbtrain.rag.seakr_traces import Spent, Trace
from kbtrain.records import Evidence, GateScore, Hit
from kbtrain.runtime.exit_code import exit_code

LONG = "x" * 100_000
REFUSED = "too large for this disk|disk is full"


@pytest.mark.parametrize(
    ("file", "script"),
    [
        ("runs/my run/questions.jsonl", "data_gen/collect.py"), ("runs/my run/evidence.jsonl", "data_gen/retrieve.py"),
        ("runs/my run/samples.db", "data_gen/sample.py"), ("runs/my run/labels.jsonl", "data_gen/label.py"),
        ("runs/my run/examples/dev.jsonl", "data_gen/build.py"),
        ("runs/my run/vectors/vectors.json", "data_gen/embed.py"), ("runs/my run/outcomes.jsonl", "eval/end_to_end.py"),
    ],
)  # fmt: skip
def test_a_file_of_a_run_folder_that_is_missing_names_the_command_that_makes_it(file, script):
    with pytest.raises(UserError) as error:
        read_text(file)
    assert str(error.value) == f"{file}: no such file; run first: python {script} --run 'runs/my run'"
    assert (Path(__file__).parent.parent / script).is_file()


def test_a_file_of_ones_own_that_is_missing_names_no_command():
    said = {missing_file_message(file) for file in ("questions.jsonl", "texts/dev.jsonl", "a/b.txt")}
    assert said == {"no such file"}


def _safetensors(path):
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(100_000)}, path)


def _torch(path):
    import torch

    torch.save({"a": torch.zeros(100_000)}, path)


@pytest.mark.parametrize("write", [_safetensors, _torch])
def test_a_full_disk_is_one_line_whichever_library_writes(write, tmp_path):
    path = tmp_path / "made.npy"
    with full_disk(), pytest.raises(UserError, match=rf"made\.npy: .*({REFUSED})"), errors_of(path):
        write(path)


def _score(path):
    with ScoreFile(path, {}) as file:
        file.append(ScoredChunk((GateScore(LONG, "g", 1.0),), Timing(("g",), "dev", 1, 1.0)))
        file.finish("score", {}, [], 0.0, ["g"])


def _evidence(path):
    with Records(path, {"k": 1}) as file:
        file.add(Evidence("q", "bm25", "a query", (Hit("p", "t", LONG, 1.0),)))


def _trace(path):
    with Records(path, {"a": 1}, growing=True) as file:
        file.add(Trace("q", LONG, (), "seakr", 0.5, (), (), "done", "", False, 0.0, 0.0, Spent()))


@pytest.mark.parametrize("write", [_score, _evidence, _trace])
def test_a_file_that_grows_names_itself_on_a_full_disk_and_goes_on_with_room(write, tmp_path):
    path = tmp_path / "file.jsonl"
    with full_disk(), pytest.raises(UserError, match=rf"file\.jsonl\S*: .*({REFUSED})"):
        write(path)
    write(path)
    assert LONG in path.read_text() and path.read_text().count("\n") == 1


def test_a_lock_holds_though_there_is_no_room_for_its_text(tmp_path):
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
        (OSError(errno.EINVAL, "Invalid argument", "/proc/1/net"), "error: /proc/1/net: "),
    ],
)
def test_a_command_says_in_one_line_what_no_writer_named(error, said, capsys):
    def work():
        raise error

    assert exit_code(work, "") == 2
    shown = capsys.readouterr().err
    assert shown.startswith(said) and shown.count("\n") == 1


def test_output_that_nobody_takes_is_one_line():
    command = [sys.executable, "-m", "kbtrain.cli", "ls", "launch"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: disk is full; free some space and run the same command again\n"


def test_what_lies_beside_a_folder_given_by_dots_lies_beside_the_folder(tmp_path, monkeypatch):
    inner = tmp_path / "run" / "inner"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert beside(Path("."), ".partial") == tmp_path / "run" / "inner.partial"
    assert beside(Path(".."), ".partial") == tmp_path / "run.partial"
    assert beside(Path("a/b.json"), ".partial") == Path("a/b.json.partial")
    with writing(Path(".")), pytest.raises(UserError, match="another process is writing it"):
        writing(inner).__enter__()
    assert meta_path(Path(".")) == tmp_path / "run" / "inner.meta.json"


WRITES = """import sys, time
from pathlib import Path
from kbtrain.io.files import replacing
with replacing(Path(sys.argv[1])) as partial:
    partial.write_text("half")
    print("written", flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def half_written(target):
    """A process that is in the midst of writing ``target``."""
    with subprocess.Popen([sys.executable, "-c", WRITES, str(target)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "written\n"
            yield process
        finally:
            process.kill()


def partials(folder):
    return sorted(path.relative_to(folder).as_posix().split(".")[0] for path in folder.rglob("*.partial"))


def test_what_a_killed_process_left_half_written_in_a_folder_is_removed_and_a_live_one_s_is_not(tmp_path):
    out = tmp_path / "out"
    for name in ("dead", "more/dead", "beside/dead"):
        with half_written(out / name if name != "beside/dead" else tmp_path / "out.dead"):
            pass
    own = tmp_path / "out.of-a-user.partial"
    own.write_text("")
    with half_written(out / "states" / "live"):
        assert partials(out) == ["dead", "more/dead", "states/live"]
        with writing(out):
            assert partials(out) == ["states/live"]
            assert list(tmp_path.glob("*.partial")) == [own]


def test_a_killed_user_s_lock_may_be_taken_by_everybody(tmp_path):
    held = "import os, sys\nfrom pathlib import Path\nfrom kbtrain.io.files import writing\nos.umask(0o077)\n"
    held += f"with writing(Path({str(tmp_path / 'run')!r})):\n    os.kill(os.getpid(), 9)\n"
    subprocess.run([sys.executable, "-c", held], check=False)
    assert (tmp_path / ".run.lock").stat().st_mode & 0o666 == 0o666
    with writing(tmp_path / "run"):
        pass


def test_a_link_that_leads_nowhere_is_there(tmp_path):
    assert not path_exists(tmp_path / "new")
    for name, to in {"circle": "circle", "gone": "nothing"}.items():
        (tmp_path / name).symlink_to(to)
        assert path_exists(tmp_path / name)
        with pytest.raises(UserError, match=f"{name}: "):
            read_text(tmp_path / name)


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "link to a device"])
def test_no_device_or_pipe_is_replaced_by_a_file(kind, tmp_path):
    """Root can rename onto /dev/null, which is a file for the whole machine then."""
    target, made = tmp_path / "target", tmp_path / "made"
    made.write_text("new")
    os.mkfifo(tmp_path / "pipe")
    if kind == "pipe":
        (tmp_path / "pipe").rename(target)
    else:
        target.symlink_to("pipe" if kind == "link to a pipe" else os.devnull)
    before, refused = os.lstat(target), r"/target: is a pipe, socket or device, expected a file or a new name$"
    with pytest.raises(UserError, match=refused), replacing(target):
        raise AssertionError("the work is done before it is refused")
    with pytest.raises(UserError, match=refused):
        put_in_place(made, target)
    assert os.path.samestat(os.lstat(target), before) and made.read_text() == "new"
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_file_a_link_and_nothing_are_replaced(tmp_path):
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "link to nowhere").symlink_to("nowhere/at all")
    for name in ("file", "link", "link to nowhere", "new"):
        with replacing(tmp_path / name) as partial:
            partial.write_text("new")
        assert not (tmp_path / name).is_symlink() and (tmp_path / name).read_text() == "new"


def test_an_empty_file_is_not_begun_and_a_link_to_nowhere_is_told_of(tmp_path):
    """A full disk and a kill leave empty files."""
    (tmp_path / "empty").touch()
    (tmp_path / "full").write_text("x")
    assert [has_content(tmp_path / name) for name in ("none", "empty", "full")] == [False, False, True]
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match="link: no such file"):
        has_content(tmp_path / "link")
