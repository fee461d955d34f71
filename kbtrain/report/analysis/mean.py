"""A mean over questions with its 95 % interval, gathered one value at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kbtrain.metrics.intervals import Z95


@dataclass
class RunningMean:
    """Sums of values and of their squares; the interval is the normal one over questions."""

    n: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.n += 1
        self.total += value
        self.squares += value * value

    @property
    def mean(self) -> float | None:
        return self.total / self.n if self.n else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """None for fewer than two values."""
        if self.n < 2:
            return None
        mean = self.total / self.n
        variance = max(0.0, self.squares / self.n - mean * mean) * self.n / (self.n - 1)
        half = Z95 * math.sqrt(variance / self.n)
        return mean - half, mean + half
