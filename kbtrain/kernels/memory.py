"""Memory of the process: freed blocks are kept for the next product (mallopt); and the memory it may take in all."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import warnings
from collections.abc import Iterator
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
    # one arena: those that further threads get hand large tensors' memory back in any case
    return bool(mallopt(_MMAP, _LARGEST)) and bool(mallopt(_TRIM, _NEVER)) and bool(mallopt(_ARENAS, 1))


class FreedMemory:
    """Bound on what a process keeps of the memory that it has freed, over any number of batches or steps.

    Blocks of ever other sizes leave gaps that few later ones fit, so that what is kept grows for hundreds of batches.
    Where the process holds a fifth more than when it had found its pace, the gaps go back to the system. That is looked
    at after each batch, which costs microseconds, but done ``pause`` batches apart at least, since the pages are zeroed
    when they are needed again. A process of :attr:`LARGE` bytes with ``long_batches``, which take seconds then (a
    training's, a sampling's), gives back from the fourth batch on what it holds more than then. Where :data:`LITTLE` is
    left on the machine, gaps go back at once; if that is too little, one line says so before the process is ended.
    """

    GROWTH = 1.2
    LARGE = 2_500_000_000

    def __init__(self, pause: int = 8, long_batches: bool = False) -> None:
        self.pause, self.long_batches = pause, long_batches
        self._since = 0
        self._at_pace = 0

    def check(self) -> bool:
        """Call after each batch or step; True if memory was given back."""
        self._since += 1
        if not _told and available_memory() < LITTLE:
            given = give_back()
            _tell_what_is_left()
            return given
        soon = min(self.pause, 4)
        if self._since < soon:
            return False
        held = resident_memory()
        large = self.long_batches and held > self.LARGE
        pause = soon if large else self.pause
        if self._since < pause:
            return False
        if self._since == pause:
            self._at_pace = held
        if held <= (1.0 if large else self.GROWTH) * self._at_pace:
            return False
        self._since = 0
        return give_back()


_told: list[str] = []  # lines of this process: one is enough


def _tell_what_is_left() -> None:
    left = available_memory()
    if left < LITTLE:
        line = (
            f"{left / 1e6:.0f} MB of memory are left, {resident_memory() / 1e9:.1f} GB are taken by this process: the "
            "system may end it; fewer rows at once take less (batch_rows, device_batch_size), what is finished is kept"
        )
        _told.append(line)
        warnings.warn(line, stacklevel=3)


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


LITTLE = 300_000_000  # bytes: less than a batch may take beside the one before
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")
_STATM = Path("/proc/self/statm")
_CGROUPS, _OF_PROCESS, _MEMINFO = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/meminfo")


def machine_memory() -> int:
    """Bytes that may be taken here: the machine's, or a container's share (cgroup), if that is less."""
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *cgroup_limits(_OF_PROCESS, _CGROUPS)])


def available_memory() -> int:
    """Bytes that may still be taken without swapping, as the kernel estimates it; of a container what its limit leaves
    beside what it has taken.
    """
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", _MEMINFO.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:  # not Linux
        found = None
    of_machine = int(found[1]) * 1024 if found else machine_memory()
    return max(0, min(of_machine, machine_memory(), *_cgroup_rooms(_OF_PROCESS, _CGROUPS)))


def warn_if_short(need: float, what: str, instead: str) -> None:
    """One line before work starts that may take more than is available: a system that has none left kills in silence.

    ``need``: bytes beside what the process holds; ``what`` takes them; ``instead``: what would take less.
    """
    there = available_memory()
    if need > there:
        line = (
            f"{what} takes up to {need / 1e9:.1f} GB more, and {there / 1e9:.1f} GB are available: the system may end "
            f"this process; {instead}"
        )
        _told.append(line)
        warnings.warn(line, stacklevel=3)


def cgroup_limits(of_process: Path, mounted: Path) -> list[int]:
    """Limits in bytes of this process's cgroup and of those that hold it, version 1 and 2; no entry without one."""
    limits = (_number(folder / name) for folder, name, _, _ in _cgroups(of_process, mounted))
    return [limit for limit in limits if limit is not None]


def _cgroup_rooms(of_process: Path, mounted: Path) -> Iterator[int]:
    """Bytes that each limit leaves; file pages that were not read for long are dropped before a process is ended."""
    for folder, limits, usage, idle in _cgroups(of_process, mounted):
        limit, taken = _number(folder / limits), _number(folder / usage)
        if limit is None or taken is None:
            continue
        try:
            found = re.search(rf"^{idle} (\d+)$", (folder / "memory.stat").read_text(encoding="ascii"), re.MULTILINE)
        except OSError:
            found = None
        yield limit - taken + (int(found[1]) if found else 0)


def _cgroups(of_process: Path, mounted: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Folders of the cgroups, with the names of their limit, of what they take, and of idle file pages."""
    try:
        lines = of_process.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for _, kinds, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if kinds and "memory" not in kinds.split(","):
            continue
        root = mounted / "memory" if kinds else mounted
        names = _V1 if kinds else _V2
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):  # in a container its own limit may stand at the root of what is mounted
            if folder.is_relative_to(root):
                yield folder, *names


def _number(path: Path) -> int | None:
    """The file's number; None for "max", or no such file."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
