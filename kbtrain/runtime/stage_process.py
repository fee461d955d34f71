"""Processes of a chain's stages, which end with the process that started them, also when that is killed."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence

# ends a process group by the signal that its input names (TERM at its end, when the process that wrote it is gone);
# what is left after two seconds it kills
_GUARD = """
read -r name; kill -s "${name:-TERM}" -- "-$1"
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -s 0 -- "-$1" || exit; sleep 0.2; done
kill -s KILL -- "-$1"
"""


def run_to_end(command: Sequence[str]) -> tuple[int, str]:
    """Run a command to its end; it ends with this process. Returns its exit code (negative: the signal that killed
    it), and what it wrote to stdout."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", start_new_session=True)
    with _guarded(process):
        output, _ = process.communicate()
    return process.returncode, output


@contextlib.contextmanager
def _guarded(process: subprocess.Popen[str]) -> Iterator[None]:
    """End a stage if the work with it is interrupted, or when this process is gone. A stage has its own session, with
    the processes that it starts itself (ranks of a training): a signal reaches all of them, and a terminal's Ctrl-C
    reaches them through the guard alone."""
    command = ["/bin/sh", "-c", _GUARD, "guard", str(process.pid)]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    with guard:
        try:
            yield
        except BaseException as error:
            assert guard.stdin is not None
            guard.stdin.write(b"INT\n" if isinstance(error, KeyboardInterrupt) else b"TERM\n")
            guard.stdin.close()
            process.wait()  # else the guard would see it as a zombie
            raise
        guard.kill()
