"""Memory of the process: keep freed blocks for the next product (mallopt), release them, and read the limits."""

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
    """Keep freed pages in this process, so that the system zeroes none for each large tensor. False: not glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return False
    # one arena: those that further threads get hand large tensors' memory back in any case
    return bool(mallopt(_MMAP, _LARGEST)) and bool(mallopt(_TRIM, _NEVER)) and bool(mallopt(_ARENAS, 1))


class FreedMemory:
    """Bound on the freed memory that a process keeps, over any number of batches or steps.

    Blocks of varying sizes leave gaps, so that kept memory grows for hundreds of batches. If resident memory is 20 %
    above its steady state, malloc_trim returns the gaps to the system. The check after each batch costs microseconds; a
    release happens at most every ``pause`` batches, since the system zeroes released pages. A process of :attr:`LARGE`
    bytes with ``long_batches`` of seconds releases any growth from the fourth batch on. If the machine has less than
    :data:`LITTLE` available, gaps are released at once; if that is too little, one warning precedes the kill.
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
        if not _warnings and available_memory() < LITTLE:
            released = give_back()
            _warn_if_little()
            return released
        soon = min(self.pause, 4)
        if self._since < soon:
            return False
        resident = resident_memory()
        large = self.long_batches and resident > self.LARGE
        pause = soon if large else self.pause
        if self._since < pause:
            return False
        if self._since == pause:
            self._at_pace = resident
        if resident <= (1.0 if large else self.GROWTH) * self._at_pace:
            return False
        self._since = 0
        return give_back()


_warnings: list[str] = []  # lines of this process: one is enough


def _warn_if_little() -> None:
    available = available_memory()
    if available < LITTLE:
        line = (
            f"{available / 1e6:.0f} MB of memory are left, {resident_memory() / 1e9:.1f} GB are taken by this process: "
            "the system may end it; set fewer rows at once (batch_rows, device_batch_size); finished work is kept"
        )
        _warnings.append(line)
        warnings.warn(line, stacklevel=3)


def give_back() -> bool:
    """Return free pages to the system (malloc_trim). False: not glibc."""
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return False


def resident_memory() -> int:
    """Resident bytes of this process; 0 where the system does not report them."""
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
    """Bytes that can be allocated without swapping, by the kernel's estimate and a container's limit."""
    try:
        line = re.search(r"^MemAvailable:\s+(\d+) kB", _MEMINFO.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:  # not Linux
        line = None
    of_machine = int(line[1]) * 1024 if line else machine_memory()
    return max(0, min(of_machine, machine_memory(), *_cgroup_rooms(_OF_PROCESS, _CGROUPS)))


def warn_if_short(need: float, what: str, instead: str) -> None:
    """Warn before work that may take more memory than is available: the system kills a process without a message.

    ``need``: bytes beside what the process holds; ``what`` takes them; ``instead``: what would take less.
    """
    available = available_memory()
    if need > available:
        line = (
            f"{what} takes up to {need / 1e9:.1f} GB more, and {available / 1e9:.1f} GB are available: the system may "
            f"end this process; {instead}"
        )
        _warnings.append(line)
        warnings.warn(line, stacklevel=3)


def cgroup_limits(of_process: Path, mounted: Path) -> list[int]:
    """Limits in bytes of this process's cgroup and of those that hold it, version 1 and 2; no entry without one."""
    limits = (_number(folder / name) for folder, name, _, _ in _cgroups(of_process, mounted))
    return [limit for limit in limits if limit is not None]


def _cgroup_rooms(of_process: Path, mounted: Path) -> Iterator[int]:
    """Available bytes of each limit, idle file pages included: these are dropped before a process is killed."""
    for folder, limits, usage, idle in _cgroups(of_process, mounted):
        limit, used = _number(folder / limits), _number(folder / usage)
        if limit is None or used is None:
            continue
        try:
            inactive = re.search(rf"^{idle} (\d+)$", (folder / "memory.stat").read_text(encoding="ascii"), re.MULTILINE)
        except OSError:
            inactive = None
        yield limit - used + (int(inactive[1]) if inactive else 0)


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
        cgroup = root / path.lstrip("/")
        for folder in (
            cgroup,
            *cgroup.parents,
        ):  # in a container its own limit may stand at the root of what is mounted
            if folder.is_relative_to(root):
                yield folder, *names


def _number(path: Path) -> int | None:
    """The file's number; None for "max", or no such file."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
