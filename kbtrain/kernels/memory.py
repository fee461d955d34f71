"""Memory of the process: freed blocks are kept for the next product (mallopt); and the memory it may take in all."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import warnings
from pathlib import Path

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


class FreedMemory:
    """Bound on what a process keeps of the memory that it has freed, over any number of batches or steps.

    Blocks of ever other sizes leave gaps that few later ones fit, so that what is kept grows for hundreds of batches.
    Where the process holds :attr:`GROWTH` times what it held when it had found its pace, the gaps go back to the
    system. That is looked at after each batch, which costs microseconds, but done ``pause`` batches apart at least,
    since the pages are zeroed when they are needed again.
    """

    GROWTH = 1.2

    def __init__(self, pause: int = 8) -> None:
        self.pause = pause
        self._since = 0
        self._at_pace = 0

    def check(self) -> bool:
        """Call after each batch or step; True if memory was given back."""
        self._since += 1
        if self._since < self.pause:
            return False
        held = resident_memory()
        if self._since == self.pause:
            self._at_pace = held
        if held <= self.GROWTH * self._at_pace:
            return False
        self._since = 0
        return give_back()


def give_back() -> bool:
    """Hand whole free pages back to the system. False: not glibc."""
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return False


def resident_memory() -> int:
    """Bytes that this process holds; 0 where the system does not say."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return 0


_STATM = Path("/proc/self/statm")
_CGROUPS, _OF_PROCESS, _MEMINFO = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/meminfo")


def machine_memory() -> int:
    """Bytes that may be taken here: the machine's, or a container's share (cgroup), if that is less."""
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *cgroup_limits(_OF_PROCESS, _CGROUPS)])


def available_memory() -> int:
    """Bytes that may still be taken without swapping, as the kernel estimates it; at most :func:`machine_memory`."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", _MEMINFO.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:  # not Linux
        found = None
    return min(int(found[1]) * 1024, machine_memory()) if found else machine_memory()


def warn_if_short(need: float, what: str, instead: str) -> None:
    """One line before work starts that may take more than is available: a system that has none left kills in silence.

    ``need``: bytes beside what the process holds; ``what`` takes them; ``instead``: what would take less.
    """
    there = available_memory()
    if need > there:
        warnings.warn(
            f"{what} takes up to {need / 1e9:.1f} GB more, and {there / 1e9:.1f} GB are available: the system may end "
            f"this process; {instead}",
            stacklevel=3,
        )


def cgroup_limits(of_process: Path, mounted: Path) -> list[int]:
    """Limits in bytes of this process's cgroup and of those that hold it, version 1 and 2; none is no entry."""
    try:
        lines = of_process.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for _, kinds, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if kinds and "memory" not in kinds.split(","):
            continue
        root, name = (mounted / "memory", "memory.limit_in_bytes") if kinds else (mounted, "memory.max")
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):  # in a container its own limit may stand at the root of what is mounted
            if folder.is_relative_to(root):
                found.append(_number(folder / name))
    return [limit for limit in found if limit is not None]


def _number(path: Path) -> int | None:
    """The file's number; None for "max", or no such file."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
