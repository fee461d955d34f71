"""Processes of a chain's stages, which end with the process that started them: at SIGTERM, SIGHUP, Ctrl-C, SIGKILL."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence

_GRACE = 2.0  # seconds that an interrupted stage has to end by itself
# its input ends with the process that started it, of whatever that died
_GUARD = f'read -r _; kill -s TERM -- "-$1"; sleep {_GRACE:.0f}; kill -s KILL -- "-$1"'


def run_to_end(command: Sequence[str]) -> tuple[int, str]:
    """Run a command to its end; it ends with this process. Returns its exit code (negative: the signal that killed
    it), and what it wrote to stdout."""
    with _signals_as_exceptions():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", start_new_session=True)
        with _guarded(process.pid), _ending(process.pid, process.poll):
            output, _ = process.communicate()
    return process.returncode, output


@contextlib.contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit, so that this process can end its children; ignored ones stay ignored."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    handled = []
    if threading.current_thread() is threading.main_thread():
        handled = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _guarded(group: int) -> Iterator[None]:
    """End a process group if this process is killed, and can do nothing itself: a small shell does it."""
    command = ["/bin/sh", "-c", _GUARD, "guard", str(group)]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    with guard:
        try:
            yield
        finally:
            guard.kill()


@contextlib.contextmanager
def _ending(group: int, reap: Callable[[], object]) -> Iterator[None]:
    """End a process group if the work with it is interrupted. ``reap`` collects the exit code of its first process. A
    stage has its own session, with the processes that it starts itself (ranks of a training): a signal reaches all
    of them, and a terminal's Ctrl-C reaches them through this process alone."""
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
