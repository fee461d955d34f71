"""Processes of a chain's stages: fresh ones, or forks of one that has imported torch and transformers.

Each stage imports for 2 to 5 seconds else, which is more than the work of most. The forks are multiprocessing's, of its
fork server. Where forks of a process that has loaded such libraries are not safe stages begin afresh: on macOS, and
beside a GPU, which an import may open (bitsandbytes asks for its capability), and which no fork can open again.

A stage ends with the process that started it: at SIGTERM, SIGHUP and Ctrl-C.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from kbtrain.runtime import scripts

PRELOADED = "kbtrain.runtime.preloaded"
_GRACE = 2.0  # seconds that an interrupted stage has to end by itself
_GPUS = ("nvidia[0-9]*", "kfd", "dxg")  # NVIDIA's, AMD's, those of a Windows that Linux runs in


def can_fork(devices: Path = Path("/dev")) -> bool:
    """True on a Linux without a GPU."""
    return sys.platform == "linux" and not any(found for name in _GPUS for found in devices.glob(name))


@dataclass(frozen=True)
class Ended:
    """``code``: exit code, of a process that was killed the signal's number, negative; ``said``: its output.

    ``errors``: its stderr, where it was captured.
    """

    code: int
    said: str
    errors: str = ""


def fresh(command: Sequence[str], capture_errors: bool = False) -> Ended:
    """Run a command to its end; it ends with this process."""
    with _signals_as_exceptions():
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if capture_errors else None,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        with _ending(process.pid, process.poll):
            said, errors = process.communicate()
    return Ended(process.returncode, said, errors or "")


def forked(script: Path, arguments: Sequence[str]) -> Ended:
    """As ``fresh([sys.executable, script, *arguments])``, with :mod:`kbtrain.runtime.preloaded`'s libraries loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    reader, writer = context.Pipe(duplex=False)
    errors = Connection(os.dup(2), readable=False)  # a connection is what carries a stream to another process
    process = context.Process(target=_stage, args=(script, tuple(arguments), writer, errors))
    with _signals_as_exceptions():
        process.start()
        writer.close()
        errors.close()
        try:
            with _ending(process.pid or 0, process.is_alive):
                with reader, os.fdopen(os.dup(reader.fileno()), encoding="utf-8", errors="replace") as output:
                    said = output.read()
                process.join()
        finally:
            process.kill()  # interrupted before it had a session
    return Ended(process.exitcode or 0, said)


def _stage(script: Path, arguments: Sequence[str], output: Connection, errors: Connection) -> None:
    os.setsid()
    for connection, number in ((output, 1), (errors, 2)):
        os.dup2(connection.fileno(), number)
        connection.close()
    scripts.run(script, arguments)


@contextlib.contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit, so that this process can end its children; ignored ones stay ignored."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    taken = []
    if threading.current_thread() is threading.main_thread():
        taken = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _ending(group: int, reap: Callable[[], object]) -> Iterator[None]:
    """End a process group if the work with it is interrupted. ``reap`` collects the exit code of its first process.

    A stage has a session of its own, with the processes that it starts itself (ranks of a training): a signal reaches
    all of them, and a terminal's Ctrl-C reaches them through this process alone.
    """
    try:
        yield
    except BaseException as error:
        first = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
        lives, until = _signal_group(group, first), time.monotonic() + _GRACE
        while lives and time.monotonic() < until:
            reap()
            time.sleep(0.01)
            lives = _signal_group(group, 0)
        _signal_group(group, signal.SIGKILL)
        raise


def _signal_group(group: int, number: int) -> bool:
    """True if the group has processes; ``number`` is sent to them (0: nothing)."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS refuses where only a zombie is left
        return False
    return True
