"""Chance without a generator: every draw is a hash of what it is for, so that no draw depends on another one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TypeVar

SEED = "atlas/1"
T = TypeVar("T")


def share(*parts: object) -> float:
    """A number in [0, 1), the same for the same parts on every machine."""
    text = "\0".join([SEED, *map(str, parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def shuffled(items: Iterable[T], *parts: object) -> list[T]:
    """The items in an order that depends on each item's ``str`` and on the parts alone."""
    return sorted(items, key=lambda item: (share(*parts, item), str(item)))
