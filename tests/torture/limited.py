"""Runs a script on a disk that is full, or without root's right to pass over permissions.

Arguments: ``full BYTES`` (no file may grow beyond), or ``bound 0``; then the script and its arguments.
"""

from __future__ import annotations

import ctypes
import os
import resource
import runpy
import signal
import sys

CAPABILITIES_3 = 0x20080522  # the version of the header, see capset(2)
PASSES_OVER = 1 << 1 | 1 << 2 | 1 << 3  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER


def limit(kind: str, size: int) -> None:
    """Bind this process, and what it starts."""
    if kind == "full":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as on a disk: the system says so, and kills nobody
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    elif os.getuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        head = (ctypes.c_uint32 * 2)(CAPABILITIES_3, 0)
        sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; the lower 32, then the upper
        if libc.capget(head, sets) or libc.capset(head, (ctypes.c_uint32 * 6)(*(s & ~PASSES_OVER for s in sets[:3]),
                                                                             *sets[3:])):  # fmt: skip
            raise OSError(ctypes.get_errno(), "capset")


if __name__ == "__main__":
    limit(sys.argv[1], int(sys.argv[2]))
    script, sys.argv = sys.argv[3], sys.argv[3:]
    if script == "-m":
        sys.path[0] = os.getcwd()
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(script))
        runpy.run_path(script, run_name="__main__")
