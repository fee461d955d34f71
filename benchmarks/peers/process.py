"""The driver's side of a peer: a process that is asked one thing at a time, and stands still in between."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError


class Peer:
    """A running peer, stopped while others are measured: some back ends keep a core busy with waiting."""

    def __init__(self, name: str, command: list[str], log: Path, variables: dict[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        with log.open("w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=os.environ | (variables or {}), process_group=0,
            )  # fmt: skip
        self._read()
        self._signal(signal.SIGSTOP)

    def ask(self, request: Any) -> Any:
        """Send a request and wait for its reply. Raises :class:`UserError` naming the log of a peer that died."""
        assert self.process.stdin is not None  # for the type checker
        self._signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        reply = self._read()
        self._signal(signal.SIGSTOP)
        return reply

    def close(self) -> None:
        """Let the peer end by itself, then end whatever it started and left behind."""
        assert self.process.stdin is not None  # for the type checker
        self._signal(signal.SIGCONT)
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self.process.wait()

    def _signal(self, number: int) -> None:
        # its own group in our session: if we are killed, the system wakes and ends stopped members
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def _read(self) -> Any:
        assert self.process.stdout is not None  # for the type checker
        line = self.process.stdout.readline()
        if not line:
            raise UserError(f"peer '{self.name}' ended with code {self.process.wait()}; see {self.log}")
        return json.loads(line)
