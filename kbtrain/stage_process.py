"""Processes of a chain's stages: fresh ones, or forks of one that has imported torch and transformers.

Each stage imports for 2 to 5 seconds else, which is more than the work of most. The forks are multiprocessing's, of its
fork server. Where forks of a process that has loaded such libraries are not safe stages begin afresh: on macOS, and
beside a GPU, which an import may open (bitsandbytes asks for its capability), and which no fork can open again.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from kbtrain import scripts

PRELOADED = "kbtrain.preloaded"


_GPUS = ("nvidia[0-9]*", "kfd", "dxg")  # NVIDIA's, AMD's, those of a Windows that Linux runs in


def can_fork(devices: Path = Path("/dev")) -> bool:
    """True on a Linux without a GPU."""
    return sys.platform == "linux" and not any(found for name in _GPUS for found in devices.glob(name))


@dataclass(frozen=True)
class Ended:
    """``code``: exit code, of a process that was killed the signal's number, negative; ``said``: its output."""

    code: int
    said: str


def fresh(command: Sequence[str]) -> Ended:
    """Run a command to its end."""
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    return Ended(done.returncode, done.stdout)


def forked(script: Path, arguments: Sequence[str]) -> Ended:
    """As ``fresh([sys.executable, script, *arguments])``, with the libraries of :mod:`kbtrain.preloaded` loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    reader, writer = context.Pipe(duplex=False)
    errors = Connection(os.dup(2), readable=False)  # a connection is what carries a stream to another process
    process = context.Process(target=_stage, args=(script, tuple(arguments), writer, errors))
    process.start()
    writer.close()
    errors.close()
    with reader, os.fdopen(os.dup(reader.fileno()), encoding="utf-8", errors="replace") as output:
        said = output.read()
    process.join()
    return Ended(process.exitcode or 0, said)


def _stage(script: Path, arguments: Sequence[str], output: Connection, errors: Connection) -> None:
    for connection, number in ((output, 1), (errors, 2)):
        os.dup2(connection.fileno(), number)
        connection.close()
    scripts.run(script, arguments)
