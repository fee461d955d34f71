"""An environment into which the wheel was installed, and nothing else.

What kbtrain depends on is lent from the environment of the tests (a path, so that none of its own installations of
kbtrain come along); kbtrain itself, its scripts and its command come from the wheel.

It is made once for the suite, in its own process (:class:`Making`): in the suite's first seconds one of the
machine's cores imports what all tests need, and another would have nothing to do.
"""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from tiny_kbm import make_folder

from kbtrain.demo import run_folder
from support import scripts
from support.scripts import Client, Server

ROOT = Path(__file__).resolve().parents[2]
SERVER = "server"  # file that names the folder of the environment's fork server; it is written last
FAILED = "failed"  # file that says that it could not be made


shared: Path | None = None  # folder of the suite's one, in its processes (conftest.py)


class Making:
    """A process that makes the environment in ``folder``, and then has a fork server of its Python.

    ``python``: program of the suite's server, of which that one is a fork, with torch imported.
    """

    def __init__(self, folder: Path, python: Path) -> None:
        path = os.pathsep.join((str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")))
        code = "import sys; from support import installed; installed.serve(*sys.argv[1:])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder), str(python)],
            stdin=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path},
        )  # fmt: skip

    def close(self) -> None:
        """End it; the server with it."""
        self.process.communicate()


def serve(folder: str, python: str) -> None:
    """Make the environment, start its server, and stay until the input ends."""
    try:
        server = Server(python, clean(), other=make(Path(folder)) / "bin" / "python")
    except BaseException:
        (Path(folder) / FAILED).touch()
        raise
    part = Path(folder) / f"{SERVER}.part"
    part.write_text(str(server.folder))
    part.rename(part.with_suffix(""))
    sys.stdin.read()
    server.close()


@functools.cache
def environment() -> Path:
    """The virtual environment."""
    return _folder() / "venv"


def make(folder: Path) -> Path:
    """A new virtual environment in the folder, with the wheel."""
    folder.mkdir(exist_ok=True)
    venv = folder / "venv"
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("kbtrain-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (packages,) = (venv / "lib").glob("python*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", "--disable-pip-version-check", str(wheel)], check=True, env=clean())
    return venv


def clean() -> dict[str, str]:
    """Environment variables that lead to no other installation."""
    kept = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME"}}
    return kept | {"PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@functools.cache
def _folder() -> Path:
    """Where the environment is, once it is there and its server imports."""
    folder = shared
    if folder is None:  # one file of tests by itself
        made = tempfile.TemporaryDirectory(prefix="installed-")
        atexit.register(made.cleanup)
        folder = Path(made.name)
        atexit.register(Making(folder, scripts.python()).close)
    until = time.monotonic() + 300.0
    while not (folder / SERVER).exists():
        failed = time.monotonic() > until or (folder / FAILED).exists()
        assert not failed, "the wheel's environment could not be made; the reason is above"
        time.sleep(0.05)
    return folder


@functools.cache
def _client() -> Client:
    return Client(Path((_folder() / SERVER).read_text()))


class Installed:
    """An environment with the wheel; commands run in ``folder``, which is empty at first and outside the clone."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder / "work", environment() / "bin"
        self.folder.mkdir()
        (packages,) = (environment() / "lib").glob("python*/site-packages")
        self.package = packages / "kbtrain"

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in its folder; ``more`` are environment variables."""
        program, env = str(self.bin / command[0]), clean() | more
        return subprocess.run(
            [program, *command[1:]], cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )

    def forked(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        """As :meth:`run`, but Python with torch imported is there already, for all that the command starts."""
        path, env = self.bin / command[0], clean() | more
        started = _client().start(path, list(command[1:]), env, self.folder, nested=True)
        # `kbtrain demo --tiny` takes a minute on idle cores and several beside the rest of the suite
        return subprocess.CompletedProcess(started.args, started.wait(1200), started.stdout, started.stderr)


SMALLER = """import sys
from dataclasses import replace
from kbtrain import cli, demo
whole, other = demo.chain, {
    "collect": ("--train", "20", "--dev", "5", "--test", "5"), "pilot": ("--ks", "[1, 2]", "--questions", "3"),
    "train_kbm": ("--model", sys.argv[1]),
}

def smaller(step):
    kept = dict(zip(step.arguments[::2], step.arguments[1::2]))
    more = other.get(step.script, ())
    pairs = kept | dict(zip(more[::2], more[1::2]))
    return replace(step, arguments=tuple(word for pair in pairs.items() for word in pair))

demo.chain = lambda size: [smaller(step) for step in whole(size)]
sys.exit(cli.main(["demo", "--tiny"]))
"""


class Demo:
    """`kbtrain demo --tiny` of the wheel on the real model, with fewer questions: its run folder and its output.

    The KBM is trained by a Python of its own, so that the messages of its imports are in the output; its base is tiny
    and random, as the real one would take half of the time.
    """

    def __init__(self, folder: Path) -> None:
        self.installed = Installed(folder)
        base, program = make_folder(folder / "base"), folder / "smaller.py"
        program.write_text(SMALLER)
        self.done = self.installed.forked(str(program), str(base), KBTRAIN_TEST_FRESH="train_kbm.py")
        self.run = self.installed.folder / run_folder("tiny")


@functools.cache
def demo() -> Demo:
    """The one run of all tests that look into it."""
    made = tempfile.TemporaryDirectory(prefix="demo-")
    atexit.register(made.cleanup)
    return Demo(Path(made.name))
