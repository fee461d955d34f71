"""The project's scripts as a user runs them (:func:`run`, :func:`start`), and as modules (:func:`load`).

A script runs in its own process: exit code, output, environment, SIGKILL at any moment. The process is a fork of
one that has torch and transformers imported already (``fork_server.py``, one for the whole suite), which saves 3 to
8 s of CPU a script. ``fresh=True`` starts Python anew: what a test of imports or of a launcher needs.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import io
import json
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from unittest import mock

from kbtrain.config import Config
from kbtrain.demo import ChainStep

ROOT = Path(__file__).parents[2]
AT_IMPORT = ("HF_HOME", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", "PYTHONHASHSEED", "PYTHONPATH")  # read when Python starts
Done = subprocess.CompletedProcess

asked: list[Script | Done[str]] = []  # by the test that runs now: a failed test tells them (conftest.py)
clients: list[Client] = []  # of this process, for cpu_times.py


class Script:
    """A script that was started: what ``subprocess.Popen`` offers, with the output in files."""

    def __init__(self, client: Client, command: Sequence[str], pid: int, out: Path, err: Path) -> None:
        self.args, self.pid, self._client = list(command), pid, client
        self.returncode: int | None = None
        self._out, self._err = out, err

    @property
    def stdout(self) -> str:
        """What it has written up to now."""
        return self._out.read_text() if self._out.exists() else ""

    @property
    def stderr(self) -> str:
        """What it has written up to now."""
        return self._err.read_text() if self._err.exists() else ""

    def poll(self) -> int | None:
        """Its exit code, or None. The server is asked only once there is one: many tests poll every 2 ms."""
        if self.returncode is None and self._is_over(0.0):
            self.returncode = self._client.ask({"poll": self.pid})
        return self.returncode

    def _is_over(self, timeout: float) -> bool:
        ended = os.pidfd_open(self.pid)
        over, _, _ = select.select([ended], [], [], timeout)
        os.close(ended)
        return bool(over)

    def wait(self, timeout: float = 300.0) -> int:
        """Its exit code. Raises :class:`AssertionError` after ``timeout`` seconds, then it is killed."""
        if self.returncode is None and not self._is_over(timeout):
            self.kill()
            raise AssertionError(f"not over after {timeout:.0f} s: {' '.join(self.args)}\n{self.stderr[-2000:]}")
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    script: Path | str, *argv: object, env: Mapping[str, str] | None = None, cwd: Path = ROOT, fresh: bool = False,
    timeout: float = 300.0, nested: bool = False,
) -> Done[str]:  # fmt: skip
    """Run ``python script argv`` to its end. ``script`` is relative to the repository; ``env`` adds to os.environ.

    ``nested``: what the script starts as ``sys.executable`` is forked as well.
    """
    if fresh:
        return run_command(sys.executable, str(ROOT / script), *argv, env=env, cwd=cwd, timeout=timeout)
    started = start(script, *argv, env=env, cwd=cwd, nested=nested)
    code = started.wait(timeout)
    return Done(started.args, code, started.stdout, started.stderr)


def run_command(
    *command: object, env: Mapping[str, str] | None = None, cwd: Path = ROOT, timeout: float = 300.0
) -> Done[str]:
    """Run any command to its end, remembered as :func:`run` remembers a script."""
    given = [str(part) for part in command]
    done = subprocess.run(
        given, capture_output=True, text=True, cwd=cwd, env={**os.environ, **(env or {})}, check=False, timeout=timeout,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    asked.append(done)
    return done


def start(
    script: Path | str, *argv: object, env: Mapping[str, str] | None = None, cwd: Path = ROOT, nested: bool = False
) -> Script:
    """Start ``python script argv``, or ``python -m argv`` for the script ``-m``, and go on; see :func:`run`."""
    environment = {**os.environ, **(env or {})}
    changed = [name for name in AT_IMPORT if environment.get(name) != os.environ.get(name)]
    if changed:
        raise ValueError(f"read at the start of Python, which is over: {', '.join(changed)}; give fresh=True")
    path = script if script == "-m" else str(ROOT / script)
    return _client().start(path, [str(part) for part in argv], environment, cwd, nested)


class Server:
    """The process of fork_server.py. With ``other``, the Python of another environment, it goes over to that one.

    ``python`` is its interpreter, another server's for a fork of that one; ``env``: its environment variables;
    ``more``: further modules that it imports.
    """

    def __init__(
        self, python: Path | str = sys.executable, env: Mapping[str, str] | None = None, other: Path | None = None,
        more: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.made = tempfile.TemporaryDirectory(prefix="scripts-")
        self.folder, here = Path(self.made.name), Path(__file__).parent
        self.process = subprocess.Popen(
            [str(python), str(here / "fork_server.py"), str(self.folder / "socket"), str(other or ""), *more],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env,
        )  # fmt: skip
        forked = self.folder / "python"
        forked.write_text(f"#!{other or sys.executable} -IS\n{(here / 'forked_python.py').read_text()}")
        forked.chmod(0o755)
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), "the fork server did not start; its message is above"

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.made.cleanup()


class Client:
    """What asks the server in ``folder``, from any process."""

    def __init__(self, folder: Path) -> None:
        self.python, self.n = folder / "python", 0
        self.output = tempfile.TemporaryDirectory(prefix="scripts-")
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(folder / "socket"))
        self.answers = self.socket.makefile()
        clients.append(self)

    def ask(self, request: dict[str, object]) -> int | None:
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        answer: int | None = json.loads(self.answers.readline() or "null")
        return answer

    def cpu_seconds(self) -> float:
        """Processor time of the server and of all its forks that are over."""
        return (self.ask({"cpu": True}) or 0) / 1000

    def start(
        self, script: Path | str, argv: list[str], environment: dict[str, str], cwd: Path, nested: bool = False
    ) -> Script:
        self.n += 1
        out, err = (Path(self.output.name) / f"{self.n}.{end}" for end in ("out", "err"))
        pid = self.ask({
            "script": str(script), "argv": argv, "env": environment, "cwd": str(cwd), "stdout": str(out),
            "stderr": str(err), "python": str(self.python) if nested else None,
        })  # fmt: skip
        if pid is None:
            raise RuntimeError("the fork server is gone; its message is above")
        asked.append(Script(self, [sys.executable, str(script), *argv], pid, out, err))
        return asked[-1]


shared: Path | None = None  # folder of the server of the whole suite, in its processes (conftest.py)


@functools.cache
def _client() -> Client:
    """A client of the suite's server, or of a new one, which ends with this process."""
    if shared:
        return Client(shared)
    server = Server()
    atexit.register(server.close)
    return Client(server.folder)


def python() -> Path:
    """A program that is Python for others to start, forked as a script is."""
    return _client().python


@functools.cache
def load(script: str) -> ModuleType:
    """A script as a module, by its path in the repository: ``load("eval/score.py")``. One module for all tests."""
    name = script.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, ROOT / script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic looks there for the types of a config's fields
    spec.loader.exec_module(module)
    return module


def config_class(script: Path) -> type[Config]:
    """The config class that a script hands to ``run_script``."""
    name = re.findall(r"run_script\(main, (\w+)", script.read_text(encoding="utf-8"))[0]
    kind: type[Config] = getattr(load(str(script.resolve().relative_to(ROOT))), name)
    return kind


def here(script: str, *argv: object) -> Done[str]:
    """Run a script in this process: for tables of bad input, where a process each would only cost time."""
    out, err = io.StringIO(), io.StringIO()
    given, code = [str(part) for part in argv], 0
    with mock.patch.object(sys, "argv", [script, *given]), redirect_stdout(out), redirect_stderr(err):
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    asked.append(Done([script, *given], code, out.getvalue(), err.getvalue()))
    return asked[-1]


def stage_here(step: ChainStep) -> tuple[int, str]:
    """``ChainStep.run`` in this process, for chains that are followed for what they make."""
    script, *words = step.command()[1:]
    done = here(str(Path(script).relative_to(ROOT)), *words)
    return done.returncode, done.stdout + done.stderr
