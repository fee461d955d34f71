"""Connected components of rows that share a name."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence


def linked(rows: Sequence[Collection[str]]) -> list[str | None]:
    """Least name of each row's component; None for a row without names."""
    leader: dict[str, str] = {}  # of each name: a lesser one of its component, or itself

    def least(name: str) -> str:
        while leader.setdefault(name, name) != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for names in rows:
        for former, following in itertools.pairwise(names):
            lesser, greater = sorted((least(former), least(following)))
            leader[greater] = lesser
    return [least(next(iter(names))) if names else None for names in rows]
