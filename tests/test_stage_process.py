"""Stages of a chain as forks: what a fresh process would say, do and end with, and libraries that are there already."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.scripts import run

from kbtrain.runtime import stage_process
from kbtrain.runtime.stage_process import Ended, forked, fresh

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux alone")
MODULE = "xml.dom.pulldom"  # one that nobody else imports, and that costs nothing


@pytest.fixture(autouse=True, scope="module")
def _cheap():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_process, "PRELOADED", MODULE)
        yield


def script(folder: Path, text: str) -> Path:
    path = folder / "stage.py"
    path.write_text(f"import os, sys\n{text}")
    return path


@pytest.mark.parametrize("start", [forked, lambda path, arguments: fresh([sys.executable, str(path), *arguments])])
def test_a_fork_runs_as_a_script_of_its_own_does(tmp_path, capfd, monkeypatch, start):
    monkeypatch.chdir(tmp_path)
    path = script(tmp_path, "sys.stderr.write('beside\\n')\nprint(__name__, sys.argv[1:], os.getcwd(), 'ä' * 70_000)\n")
    ended = start(path, ("--a", "b c"))
    assert ended == Ended(0, f"__main__ ['--a', 'b c'] {tmp_path} {'ä' * 70_000}\n")
    assert capfd.readouterr() == ("", "beside\n")


@pytest.mark.parametrize(
    ("text", "code"), [("sys.exit(2)", 2), ("raise ValueError", 1), ("os.kill(os.getpid(), 9)", -signal.SIGKILL)]
)
def test_its_end_is_told_with_what_it_said_before(tmp_path, capfd, text, code):
    ended = forked(script(tmp_path, f"print('before', flush=True)\n{text}\n"), ())
    assert ended == Ended(code, "before\n")
    assert ("ValueError" in capfd.readouterr().err) == (code == 1)


def test_each_fork_finds_what_was_loaded_once_and_nothing_of_the_one_before(tmp_path):
    path = script(tmp_path, f"print({MODULE!r} in sys.modules, hasattr(sys, 'mine'), os.getppid())\nsys.mine = 1\n")
    said = {forked(path, ()).said for _ in range(2)}
    assert len(said) == 1  # forks of one process
    assert said.pop().startswith("True False ") and str(os.getpid()) not in said


CHAIN = """import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, and a shell's background, ignore them
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from kbtrain import demo
from kbtrain.runtime import stage_process
from kbtrain.runtime.exit_code import exit_code
stage_process.PRELOADED = "xml.dom.pulldom"
steps = [demo.ChainStep(sys.argv[1], "sleeps", 0.1, ())]
sys.exit(exit_code(lambda: demo.follow(steps, Path("run"), print, forks=sys.argv[2] == "forked"), "resumes"))
"""
SLEEPS = """import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("pids.part", "w").write(f"{os.getpid()} {child.pid}")
os.rename("pids.part", "pids")
child.wait()
"""


@pytest.mark.parametrize("start", ["forked", "fresh"])
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)], ids=["TERM", "HUP", "INT"]
)
def test_a_chain_that_is_ended_ends_its_stage_and_what_that_has_started(tmp_path, start, number, code):
    command = [sys.executable, "-c", CHAIN, str(script(tmp_path, SLEEPS)), start]
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE) as chain:
        while not (tmp_path / "pids").exists():
            assert chain.poll() is None
            time.sleep(0.02)
        stage, child = map(int, (tmp_path / "pids").read_text().split())
        assert lives(stage) and lives(child)
        chain.send_signal(number)
        assert chain.wait(60) == code
        assert not lives(stage) and not lives(child)


def lives(pid):
    """False for a zombie, too: in a container nobody may collect it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("device", "forks"), [("null", True), ("nvidiactl", True), ("nvidia0", False), ("kfd", False), ("dxg", False)]
)
def test_beside_a_gpu_nothing_is_forked(tmp_path, device, forks):
    """A fork of a process that has opened a GPU cannot compute on it."""
    (tmp_path / device).touch()
    assert stage_process.can_fork(tmp_path) == forks


def test_what_is_preloaded_is_there_and_is_no_more_than_modules(tmp_path):
    missing = "[name for name in preloaded.MODULES if name not in sys.modules]"
    path = script(tmp_path, f"from kbtrain.runtime import preloaded\nprint('torch' in preloaded.MODULES, {missing})\n")
    done = run(path)
    assert done.returncode == 0 and done.stdout == "True []\n" and done.stderr == ""
