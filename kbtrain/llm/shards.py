"""One run cut into shards, for job arrays: shard i of n takes every n-th window of the asks.

Whole windows, because a window is what the sampler cuts into batches: so a shard computes the very batches that the
undivided run computes, and the answers are the same to the byte, whatever the number of shards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kbtrain.errors import UserError
from kbtrain.llm.base import Ask
from kbtrain.models.batching import windows


@dataclass(frozen=True)
class Shard:
    """``index`` counts from 1; 1 of 1 is the undivided run."""

    index: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str | None) -> Shard:
        """From "3/8", or None for the whole. Raises :class:`UserError`."""
        if text is None:
            return cls()
        match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(f"key 'shard': expected 1/n to n/n (a Slurm array of n: --array=1-n), found '{text}'")
        return cls(int(match[1]), int(match[2]))

    @property
    def whole(self) -> bool:
        """Whether there is no other shard."""
        return self.count == 1

    @property
    def store_name(self) -> str:
        """The file of the run folder that this shard writes."""
        return "samples.db" if self.whole else f"samples.shard-{self.index}-of-{self.count}.db"

    def windows(self, asks: Iterable[Ask], size: int) -> Iterator[list[Ask]]:
        """This shard's windows of ``size`` asks, in their order."""
        for number, window in enumerate(windows(asks, size)):
            if number % self.count == self.index - 1:
                yield window

    def check(self, total: int, size: int) -> int:
        """As :meth:`n_asks`. Raises :class:`UserError` for a shard with nothing in it."""
        if self.index > (most := -(-total // size)):
            raise UserError(
                f"key 'shard': nothing is left for shard {self.index}: {total} question-conditions are {most} windows "
                f"of {size}; use at most {most} shards, or a smaller window"
            )
        return self.n_asks(total, size)

    def n_asks(self, total: int, size: int) -> int:
        """How many of ``total`` asks are in this shard."""
        starts = range((self.index - 1) * size, total, self.count * size)
        return sum(min(size, total - start) for start in starts)
