"""Rows of names that hang together, because they share one, directly or through others."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence


def linked(rows: Sequence[Collection[str]]) -> list[str | None]:
    """For each row the least of all names that hang together with its own; None for a row without any."""
    leader: dict[str, str] = {}  # of each name: a lesser one that it hangs together with, or itself

    def least(name: str) -> str:
        while leader.setdefault(name, name) != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for names in rows:
        for one, other in itertools.pairwise(names):
            lesser, greater = sorted((least(one), least(other)))
            leader[greater] = lesser
    return [least(next(iter(names))) if names else None for names in rows]
