"""Uniform random numbers by hashing, so that a sample depends on what it is, not on when or beside what it was drawn.

Consecutive seeds of a generator repeat samples between questions; a hash of (run, question, condition, index, step)
does not.
"""

from __future__ import annotations

import hashlib


class UniformRow:
    """The stream of one answer: ``row.at(step)`` is its number in [0, 1) for that step, with 53 random bits."""

    def __init__(self, seed: str, question_id: str, condition: str, index: int) -> None:
        key = "\x1f".join((seed, question_id, condition, str(index)))
        self._base = hashlib.blake2b(key.encode(), digest_size=8)

    def at(self, step: int) -> float:
        """The uniform number for token ``step`` (counted from 0)."""
        state = self._base.copy()
        state.update(step.to_bytes(4, "little"))
        return (int.from_bytes(state.digest(), "little") >> 11) * 2.0**-53
