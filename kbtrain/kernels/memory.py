"""Memory of the process: freed blocks are kept for the next product (mallopt); and the memory of the machine."""

from __future__ import annotations

import ctypes
import functools
import os

_TRIM, _MMAP, _ARENAS = -1, -3, -8  # numbers of mallopt's parameters in glibc
_LARGEST = 32 * 2**20  # bytes; glibc takes no more
_NEVER = -1


@functools.cache
def keep_freed_memory() -> bool:
    """For this process, from now on: pages are not zeroed by the system for each large tensor. False: not glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return False
    # one arena: those that further threads get hand large tensors' memory back whatever else is asked for
    return bool(mallopt(_MMAP, _LARGEST)) and bool(mallopt(_TRIM, _NEVER)) and bool(mallopt(_ARENAS, 1))


def machine_memory() -> int:
    """Bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
