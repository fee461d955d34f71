"""The fork server of the tests: a forked script is to its user what a fresh one is."""

import json
import signal
import time
from pathlib import Path

import pytest
from support import scripts
from support.servers import wait_until

SCRIPT = """
import json, os, sys
if "--wait" in sys.argv:
    print("waiting", flush=True)
    import time
    time.sleep(60)
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("SOME_NAME"), __name__, sys.path[0], __file__]))
print("told", file=sys.stderr)
import atexit
atexit.register(print, "the end")
{end}
"""
ENDS = ["", "sys.exit(2)", "sys.exit('no')", "raise KeyError('x')", "os.kill(os.getpid(), 9)"]


@pytest.mark.parametrize("end", ENDS)
def test_a_forked_script_is_to_its_user_what_a_fresh_one_is(tmp_path, end):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("{end}", end))
    forked, fresh = (
        scripts.run(path, "--n", 3, env={"SOME_NAME": "some value"}, cwd=tmp_path, fresh=fresh)
        for fresh in (False, True)
    )  # fmt: skip
    assert forked.args == fresh.args
    assert forked.returncode == fresh.returncode
    assert forked.stdout == fresh.stdout
    assert forked.stderr.splitlines()[-1:] == fresh.stderr.splitlines()[-1:]
    assert "Traceback" not in forked.stderr or "Traceback" in fresh.stderr


def test_a_script_is_killed_at_any_moment(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("{end}", ""))
    script = scripts.start(path, "--wait")
    while script.stdout != "waiting\n":  # an unbuffered Python writes the line's end by itself
        assert script.poll() is None
        time.sleep(0.005)
    script.kill()
    assert script.wait() == script.poll() == -signal.SIGKILL
    assert script.stdout == "waiting\n"


NESTED = """
import json, signal, subprocess, sys, time
say = [sys.executable, "said.py", "a b"]
one = subprocess.run(say, input="in", capture_output=True, text=True)
other = subprocess.run([sys.executable, "-u", "-m", "said"], input="", capture_output=True, text=True)
waiting = subprocess.Popen(say + ["--wait"], stdout=subprocess.PIPE, text=True)
pid = int(waiting.stdout.readline())
waiting.kill()
asked = subprocess.Popen(say + ["--wait"], stdout=subprocess.PIPE, text=True)
asked.stdout.readline()
asked.terminate()
ended = [asked.stdout.read(), asked.wait()]
print(json.dumps([*ended, one.stdout, one.stderr, one.returncode, other.returncode, waiting.wait(), pid]))
"""
SAID = """
import os, signal, sys, time
if "--wait" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    try:
        print(os.getpid(), flush=True)
        time.sleep(60)
    finally:
        print("ends", flush=True)
print(sys.argv[1:], sys.stdin.read(), "torch" in sys.modules)
sys.exit(f"{len(sys.argv)} words" if len(sys.argv) > 1 else 3)
"""


def test_what_a_script_starts_as_python_is_forked_where_a_test_asks_for_it(tmp_path):
    for name, text in (("outer.py", NESTED), ("said.py", SAID)):
        (tmp_path / name).write_text(text)
    done = scripts.run(tmp_path / "outer.py", cwd=tmp_path, nested=True)
    assert done.returncode == 0, done.stderr
    *said, pid = json.loads(done.stdout)
    assert said == ["ends\n", 7, "['a b'] in True\n", "2 words\n", 1, 3, -signal.SIGKILL]
    wait_until(lambda: not Path(f"/proc/{pid}").exists())  # killed, it takes its fork along
