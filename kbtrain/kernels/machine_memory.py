"""How much memory this machine has."""

from __future__ import annotations

import os


def machine_memory() -> int:
    """Bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
