"""Processor time: threads that wait for each other, and garbage collections.

OpenMP's settings count only before torch is loaded. GNU OpenMP's threads spin at the end of each of a layer's many
small operations. On a machine that does other work too, a thread that is not running is waited for by others that keep
the cores from it: a training step then takes up to ten times its time.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

SPIN_COUNT = "2000"  # loops: longer than an operation's own delay, far shorter than a time slice of the scheduler
_CHOSEN_BY_USER = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "GOMP_CPU_AFFINITY", "KMP_BLOCKTIME")


def share_cores(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Let waiting threads sleep soon, here and in all processes started from here; True if that was set now: not where
    the user has chosen, or where torch is loaded (OpenMP reads its variables only once)."""
    if "torch" in sys.modules or any(name in environment for name in _CHOSEN_BY_USER):
        return False
    environment["GOMP_SPINCOUNT"] = SPIN_COUNT
    return True


FEW = 4  # questions: up to this number, one core more gains little


def leave_a_core(n: int) -> None:
    """Before this thread scores ``n`` questions: few are computed on all threads but one, many on every thread that
    torch has by itself. An event loop in the same process has that core for itself: beside a gate that takes them all,
    a decision on two cores took twice as long. Without torch, or where the user has chosen a number of threads, nothing
    is changed."""
    torch = sys.modules.get("torch")
    if torch is None or "OMP_NUM_THREADS" in os.environ:
        return
    n_threads = threads_of_torch() if n > FEW else max(1, threads_of_torch() - 1)
    if torch.get_num_threads() != n_threads:
        torch.set_num_threads(n_threads)


@functools.cache
def threads_of_torch() -> int:
    """Number of torch's threads when this was first asked, before it is changed here."""
    import torch

    return torch.get_num_threads()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute numpy's and scipy's products on one thread: for fits of some hundred rows; also a decorator. Their
    products are too small to share: two threads that wait for each other take two to eight times as long, idle cores or
    not, and the sums' order, hence the last bits, would follow the number of cores."""
    import scipy.linalg  # noqa: F401  # threadpoolctl limits the libraries that are loaded
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="blas"):
        yield


THRESHOLD = 10_000  # new objects before a collection of the youngest
OWN = (700, 2000)  # Python's own threshold, before and since 3.13


def raise_gc_threshold() -> None:
    """Collect less often in this process; a threshold that the user set stays."""
    # imports of torch and transformers create hundreds of thousands of long-lived objects; Python's own threshold
    # collects 1,340 times meanwhile, a fifth of the imports' processor time (0.9 of 4.9 s); this one 92 times
    if gc.get_threshold()[0] in OWN:
        gc.set_threshold(THRESHOLD)


def freeze_objects(again: bool = False) -> None:
    """Exclude all present objects from later collections, which would stop every stream for a fifth of a second.
    ``again``: frozen objects are collected first, for a gate that went out of use."""
    if again:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
