"""Waiting of OpenMP's threads for each other: set before torch is loaded, or not at all.

GNU OpenMP's threads spin at the end of each of a layer's many small operations. On a machine that does other work too,
a thread that is not running is waited for by others that keep the cores from it: a training step then takes up to ten
times its time (``benchmarks/busy.py``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

SPIN_COUNT = "2000"  # loops: longer than an operation's own delay, far shorter than a time slice of the scheduler
_CHOSEN_BY_USER = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "GOMP_CPU_AFFINITY", "KMP_BLOCKTIME")


def share_cores(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Let waiting threads sleep soon, here and in all processes started from here; True if that was set now.

    Nothing is changed where the user has chosen, or where torch is loaded: OpenMP reads its variables only once.
    """
    if "torch" in sys.modules or any(name in environment for name in _CHOSEN_BY_USER):
        return False
    environment["GOMP_SPINCOUNT"] = SPIN_COUNT
    return True
