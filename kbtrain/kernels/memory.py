"""Memory of the process: keep freed blocks for the next product (mallopt), release them, and read the limits."""

from __future__ import annotations

import ctypes
import functools
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil

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
    above its steady state, malloc_trim returns the gaps to the system, at most every ``pause`` batches, since pages are
    zeroed then. A process of :attr:`LARGE` bytes with ``long_batches`` of seconds releases any growth from the fourth
    batch on. With less than :data:`LITTLE` available they are released at once; one warning precedes the kill.
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
            return _release_or_warn()
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


def _release_or_warn() -> bool:
    released = give_back()
    if (available := available_memory()) < LITTLE:
        _warnings.append(
            f"{available / 1e6:.0f} MB of memory are left, {resident_memory() / 1e9:.1f} GB are taken by this process: "
            "the system may end it; set fewer rows at once (batch_rows, device_batch_size); finished work is kept"
        )
        warnings.warn(_warnings[0], stacklevel=4)
    return released


def give_back() -> bool:
    """Return free pages to the system (malloc_trim). False: not glibc."""
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return False


def resident_memory() -> int:
    return int(psutil.Process().memory_info().rss)


LITTLE = 300_000_000  # bytes: less than a batch may take beside the one before
_CGROUPS, _OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def machine_memory() -> int:
    """Bytes that may be taken here: the machine's, or a container's share (cgroup), if that is less."""
    limits = (_number(folder / "memory.max") for folder in _cgroups())
    return min([int(psutil.virtual_memory().total), *(limit for limit in limits if limit is not None)])


def available_memory() -> int:
    """Bytes that can be allocated without swapping, by the system's estimate and a container's limit."""
    return max(0, min([int(psutil.virtual_memory().available), machine_memory(), *_cgroup_rooms()]))


def _cgroup_rooms() -> Iterator[int]:
    """Available bytes of each limit, idle file pages included: these are dropped before a process is killed."""
    for folder in _cgroups():
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is None or used is None:
            continue
        try:
            inactive = re.search(r"^inactive_file (\d+)$", (folder / "memory.stat").read_text(encoding="ascii"), re.M)
        except OSError:
            inactive = None
        yield limit - used + (int(inactive[1]) if inactive else 0)


def _cgroups() -> list[Path]:
    """Folders of this process's cgroup (version 2) and of those that hold it."""
    try:
        lines = _OF_PROCESS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    own = [_CGROUPS / line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")]
    # in a container its own limit may be at the root of what is mounted
    return [folder for group in own for folder in (group, *group.parents) if folder.is_relative_to(_CGROUPS)]


def _number(path: Path) -> int | None:
    """The file's number; None for "max", or no such file."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
