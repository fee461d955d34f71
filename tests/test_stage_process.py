"""Stages of a chain as processes: their output, their exit codes, and their end with the chain's."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from kbtrain.runtime.stage_process import run_to_end


def script(folder, text):
    path = folder / "stage.py"
    path.write_text(f"import os, sys\n{text}")
    return path


def test_the_output_of_a_stage_is_whole(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = script(tmp_path, "sys.stderr.write('beside\\n')\nprint(__name__, sys.argv[1:], os.getcwd(), 'ä' * 70_000)\n")
    result = run_to_end([sys.executable, str(path), "--a", "b c"])
    assert result == (0, f"__main__ ['--a', 'b c'] {tmp_path} {'ä' * 70_000}\n")
    assert capfd.readouterr() == ("", "beside\n")


@pytest.mark.parametrize(
    ("text", "code"), [("sys.exit(2)", 2), ("raise ValueError", 1), ("os.kill(os.getpid(), 9)", -signal.SIGKILL)]
)
def test_a_stage_s_exit_code_comes_with_its_output(tmp_path, capfd, text, code):
    result = run_to_end([sys.executable, str(script(tmp_path, f"print('before', flush=True)\n{text}\n"))])
    assert result == (code, "before\n")
    assert ("ValueError" in capfd.readouterr().err) == (code == 1)


CHAIN = """import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, and a shell's background, ignore them
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from kbtrain import demo
from kbtrain.runtime.exit_code import exit_code
steps = [demo.ChainStep(sys.argv[1], "sleeps", 0.1, ())]
sys.exit(exit_code(lambda: demo.follow(steps, Path("run"), print), "resumes"))
"""
SLEEPS = """import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("pids.part", "w").write(f"{os.getpid()} {child.pid}")
os.rename("pids.part", "pids")
child.wait()
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), *((number, -number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL))],
    ids=["INT", "TERM", "HUP", "KILL"],
)
def test_a_chain_that_is_ended_ends_its_stage_and_what_that_has_started(tmp_path, number, code):
    command = [sys.executable, "-c", CHAIN, str(script(tmp_path, SLEEPS))]
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE) as chain:
        while not (tmp_path / "pids").exists():
            assert chain.poll() is None
            time.sleep(0.02)
        stage, child = map(int, (tmp_path / "pids").read_text().split())
        assert lives(stage) and lives(child)
        chain.send_signal(number)
        assert chain.wait(60) == code
        while code < 0 and (lives(stage) or lives(child)):  # the guard ends them a moment later
            time.sleep(0.02)
        assert not lives(stage) and not lives(child)


def lives(pid):
    """False for a zombie, too: in a container nobody may collect it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
