"""llama.cpp's own server on loopback, in the environment that KBTRAIN_SERVERS_PYTHON names (``make test-servers``)."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

SERVERS_PYTHON = os.environ.get("KBTRAIN_SERVERS_PYTHON")
SERVE = Path(__file__).parent / "llamacpp_serve.py"


@contextlib.contextmanager
def llamacpp(context: int, slots: int) -> Iterator[str]:
    """Address of a server with a context for all its slots together."""
    command = [str(SERVERS_PYTHON), str(SERVE), str(context), str(slots)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            address = next(found[1] for line in process.stdout if (found := re.match(r"listening on (\S+)", line)))
            yield f"{address}/v1"
        finally:
            process.kill()
