"""Batches in parallel on a CPU: threads that compute with a share of the cores each.

Two cores finish two batches sooner in parallel than one after the other: neither waits for the other after each of a
layer's many small operations, nor for Python between them.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

import torch
from transformers import PreTrainedModel

T = TypeVar("T")
R = TypeVar("R")


_PARALLEL = 2  # on a CPU with as many cores (measured with two; more would take more memory)


def n_parallel(model: PreTrainedModel) -> int:
    """Number of batches of a model to compute in parallel: 1 without gain, or where the model cannot be replicated.

    That is so where a module's forward is replaced, as trainers do, or where processes share the weights.
    """
    if model.device.type != "cpu" or torch.get_num_threads() < _PARALLEL:
        return 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return 1
    return 1 if any("forward" in module.__dict__ for module in model.modules()) else _PARALLEL


def replica(model: PreTrainedModel) -> PreTrainedModel:
    """Copy of a model with modules and a config of its own; the weights are shared."""
    weights = itertools.chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in weights})


def parallel_batches(works: Sequence[Callable[[T], R]], items: Iterable[T]) -> Iterator[R]:
    """Results of ``works`` for the items, in their order. Each of ``works`` serves one item at a time, in a thread of
    its own, with its share of PyTorch's threads."""
    if len(works) == 1:
        yield from map(works[0], items)
        return
    cores = torch.get_num_threads()
    free: SimpleQueue[Callable[[T], R]] = SimpleQueue()
    for work in works:
        free.put(work)

    def run_item(item: T) -> R:
        work = free.get()
        try:
            return work(item)
        finally:
            free.put(work)

    pool = ThreadPoolExecutor(len(works), "kbtrain", torch.set_num_threads, (max(1, cores // len(works)),))
    pending: deque[Future[R]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(run_item, item))
            if len(pending) > len(works):  # one waits, so that no thread idles while a result is stored
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(cores)
