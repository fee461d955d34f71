"""What every gate offers: one number per question, higher = retrieval more needed. Thresholds are applied outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kbtrain.records import GateExample


class Gate(Protocol):
    """A gate scores examples and says what it needs, so that a caller does only that work.

    ``needs_samples``: answers sampled from the model; ``needs_evidence``: examples carry a reference.
    """

    @property
    def name(self) -> str:
        """The name results are stored under."""
        ...

    @property
    def needs_samples(self) -> bool:
        """Whether scoring needs stored samples."""
        ...

    @property
    def needs_evidence(self) -> bool:
        """Whether scoring needs retrieved text."""
        ...

    def score(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example, in the gate's documented unit; higher = retrieval more needed."""
        ...
