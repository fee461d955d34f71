"""Ports of 127.0.0.1 for servers and ranks of tests."""

from __future__ import annotations

import itertools
import os
import socket

# Below the ports that the system hands out (32768 and up), each process of the suite has its own: what is free now is
# then still free when a child binds it.
_OWN = 20_000 + 400 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_next = itertools.count(os.getpid() % 200)


def free_port() -> str:
    """A port that nobody listens at, another one each time."""
    while True:
        port = _OWN + next(_next) % 400
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return str(port)
