"""Draws by hashing their purpose, so that no draw depends on another; and splits by entity.

A country, its capital and its cities are in one split, as are a US state and its cities.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

from kbtrain.records import Split

SEED = "atlas/1"
T = TypeVar("T")


def share(*parts: object) -> float:
    """A number in [0, 1), the same for the same parts on every machine."""
    text = "\0".join([SEED, *map(str, parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def shuffled(items: Iterable[T], *parts: object) -> list[T]:
    """The items in an order that depends on each item's ``str`` and on the parts alone."""
    return sorted(items, key=lambda item: (share(*parts, item), str(item)))


_BLOCK: tuple[Split, ...] = ("train",) * 15 + ("dev",) * 3 + ("test",) * 7


def assign(ids: Sequence[str]) -> dict[str, Split]:
    """60 % train, 12 % dev, 28 % test of every 25 neighbours in popularity (``ids`` best known first)."""
    split: dict[str, Split] = {}
    for start in range(0, len(ids), len(_BLOCK)):
        block = ids[start : start + len(_BLOCK)]
        # spread a short last block over the splits as well
        places = [_BLOCK[i * len(_BLOCK) // len(block)] for i in range(len(block))]
        split.update(zip(shuffled(block, "split"), places, strict=True))
    return split


def ranks(ids: Sequence[str]) -> dict[str, float]:
    """Rank share of each id (best known first): 1 for the first, 0 for the last."""
    return {name: round(1 - i / max(1, len(ids) - 1), 4) for i, name in enumerate(ids)}
