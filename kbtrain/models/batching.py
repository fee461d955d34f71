"""Cuts a stream of prompts into batches: a function of the input alone, so that a resumed run repeats them exactly.

Rounding in a batch depends on its shape; were batches made of whatever is left to do, a resumed run would end in other
bytes than an undisturbed one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from kbtrain.llm.sampler.sampler import PromptRows

T = TypeVar("T")


@dataclass(frozen=True)
class BatchLimits:
    """How much goes into one batch: answers drawn at once, and prompt tokens (padding counted) prefilled at once."""

    rows: int = 128
    prompt_tokens: int = 8192
    window: int = 256  # prompts that are looked at together, to put like lengths into one batch


def windows(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive lists of ``size`` items (the last may be shorter)."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def batches(prompts: list[PromptRows], limits: BatchLimits) -> Iterator[list[PromptRows]]:
    """Batches of one window: like numbers of answers and like lengths together, longest first (memory errs early)."""
    ordered = sorted(prompts, key=lambda p: (-len(p.indices), -len(p.ids), p.question_id, p.condition))
    batch: list[PromptRows] = []
    rows = 0
    for prompt in ordered:
        longest = len(batch[0].ids) if batch else 0
        full = rows + len(prompt.indices) > limits.rows or longest * (len(batch) + 1) > limits.prompt_tokens
        uneven = bool(batch) and len(prompt.indices) != len(batch[0].indices)
        if batch and (full or uneven):
            yield batch
            batch, rows = [], 0
        batch.append(prompt)
        rows += len(prompt.indices)
    if batch:
        yield batch
