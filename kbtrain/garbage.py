"""Python's search for garbage: seldom in commands, and in servers not through what stays.

Importing torch and transformers makes hundreds of thousands of objects that stay. With Python's own threshold they are
searched 1,340 times meanwhile, which is a fifth of the processor time of the imports (0.9 of 4.9 s); with this one 92
times.
"""

from __future__ import annotations

import gc

THRESHOLD = 10_000  # new objects before the youngest are searched
OWN = (700, 2000)  # Python's own threshold, before and since 3.13


def search_seldom() -> None:
    """Search for garbage more seldom in this process, unless someone has chosen a threshold."""
    if gc.get_threshold()[0] in OWN:
        gc.set_threshold(THRESHOLD)


def set_aside(again: bool = False) -> None:
    """Leave all objects there are out of later searches.

    Modules and a gate's parts are hundreds of thousands of objects that stay; a search through them stops every stream
    for a fifth of a second. ``again``: what was set aside before is searched first, for a gate that is no longer used.
    """
    if again:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
