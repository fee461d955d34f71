"""The gate that knows nothing: the baseline ``Rnd`` of KBM, table 1."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from kbtrain.records import GateExample


class Random:
    """A uniform number in [0, 1) per question, hashed from seed and question id: it does not depend on the batch.

    Retrieve if score > 1 - ratio, to retrieve about this ratio of the questions.
    """

    name = "random"
    needs_samples = False
    needs_evidence = False

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def score(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example."""
        return [self._uniform(example.question_id) for example in examples]

    def _uniform(self, question_id: str) -> float:
        digest = hashlib.blake2b(f"{self.seed}\0{question_id}".encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "big") >> 11) / 2**53
