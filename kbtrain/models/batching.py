"""Batches of like length, and their padding: functions of the input alone, so that a resumed run repeats them exactly.
Rounding in a batch depends on its shape."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


P = TypeVar("P", bound=Any)  # as kbtrain.llm.sampler.observer.PromptRows


@dataclass(frozen=True)
class BatchLimits:
    """Upper bounds of one batch: answers drawn at once, and prompt tokens (padding counted) prefilled at once."""

    rows: int = 128
    prompt_tokens: int = 8192
    window: int = 256  # prompts that are looked at together, to put like lengths into one batch


def windows(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive lists of ``size`` items (the last may be shorter)."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def like_length(
    lengths: Sequence[int], tokens_per_batch: int, groups: Sequence[object] | None = None
) -> list[list[int]]:
    """Indices in batches of like length, longest first, each of at most this number of tokens, padding included. Rows
    of different ``groups`` (one a row, compared by identity) are never in one batch."""
    rank: dict[int, int] = {}
    group = [rank.setdefault(id(key), len(rank)) for key in groups] if groups else [0] * len(lengths)
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (group[i], -lengths[i], i)):
        newest = batches[-1] if batches and group[batches[-1][0]] == group[i] else []
        if newest and (len(newest) + 1) * lengths[newest[0]] <= tokens_per_batch:
            newest.append(i)
        else:
            batches.append([i])
    return batches


def common_start(prompts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The longest run of tokens with which all of these begin, and after which each continues."""
    shortest = min(len(ids) for ids in prompts)
    columns = zip(*(ids[: shortest - 1] for ids in prompts), strict=True)
    return tuple(column[0] for column in itertools.takewhile(lambda column: len(set(column)) == 1, columns))


def n_alike(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of leading tokens that two texts share."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def padded(
    rows: Sequence[Sequence[T]], fill: T, side: Literal["left", "right"] = "right"
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, longest) with ``fill`` at the shorter rows' ``side``, and the mask of what is real (1) or filled (0)."""
    import torch

    lengths = torch.tensor([len(row) for row in rows])
    width, left = int(lengths.max()), side == "left"
    gaps = [[fill] * (width - len(row)) for row in rows]
    values = [[*gap, *row] if left else [*row, *gap] for gap, row in zip(gaps, rows, strict=True)]
    places = torch.arange(width)
    mask = places >= width - lengths[:, None] if left else places < lengths[:, None]
    return torch.tensor(values), mask.long()


def batches(prompts: list[P], limits: BatchLimits) -> Iterator[list[P]]:
    """Batches of one window: like numbers of answers and like lengths together, longest first (memory errs early)."""
    ordered = sorted(prompts, key=lambda p: (-len(p.indices), -len(p.ids), p.question_id, p.condition))
    batch: list[P] = []
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


def is_memory_error(error: BaseException) -> bool:
    """True for an error by which Python or PyTorch reports too little memory."""
    import torch

    # PyTorch raises its own type on a GPU and a plain RuntimeError on a CPU
    phrases = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(k in str(error) for k in phrases)
