"""Folds of cross-validation that keep questions about one entity, and turns of one dialogue, together.

What a gate has learnt of an entity it knows for every question: a held-out score of a question whose entity was
fitted to would be better than those of new questions are. Splits promise more (``studies/pool.py``): no name
at all is in two of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from kbtrain.errors import UserError
from kbtrain.gate.trained_on import asked_about
from kbtrain.records import Example

FOLDS = 5
MOST_HELD_OUT = 0.3  # share of the questions in a fold; fits to the few others say little of the fit to all
_LEAST = 20  # questions, from which on a fold's share is a matter of entities and not of their number


def groups_of(examples: Iterable[Example]) -> list[int]:
    """A number for each example, equal for those about one entity (the first that they name) or of one dialogue.

    Questions that name no entity are grouped by their text. Other names of a question join nothing: through a country
    that many questions mention, nearly all of them would be one group.
    Raises :class:`UserError` where a fold would hold out more than :data:`MOST_HELD_OUT` of 20 questions or more.
    """
    first: dict[str, int] = {}
    names: list[str] = []
    groups = []
    for place, example in enumerate(examples):
        key, name = asked_about(example)
        names.append(name)
        groups.append(first.setdefault(key, place))
    _check_held_out(groups, names)
    return groups


def _check_held_out(groups: Sequence[int], names: Sequence[str]) -> None:
    if len(groups) < _LEAST:
        return
    (group, size), *_ = Counter(groups).most_common(1)
    largest = max(size, *(len(held) for _, held in folds(groups, seed=0)))
    if largest > MOST_HELD_OUT * len(groups):
        raise UserError(
            f"a fold of the cross-validation would hold out {largest / len(groups):.0%} of the {len(groups)} training "
            f"questions (at most {MOST_HELD_OUT:.0%}): {size} are about '{names[group]:.60}'. Name the entity that a "
            "question asks about first in 'entities' (a dialogue by its id), or add questions about others"
        )


def members(groups: Sequence[int]) -> list[list[int]]:
    """Places of each group, in the order of the groups' first places."""
    places: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        places.setdefault(group, []).append(place)
    return list(places.values())


def folds(groups: Sequence[int], seed: int, count: int = FOLDS) -> list[tuple[list[int], list[int]]]:
    """Places to fit to and places held out, for each fold; whole groups are held out.

    ``seed`` shuffles the groups. The largest go first, each into the first fold with room for it, or else into the
    smallest: folds are as equal as the groups allow. A single group, as an inner fold may have, is split.
    """
    together = members(groups if len(set(groups)) > 1 else range(len(groups)))
    count = min(count, len(together))
    if count < 2:
        return []
    # sizes and shuffle of scikit-learn's KFold, which takes a second to load
    rooms = [len(groups) // count + (fold < len(groups) % count) for fold in range(count)]
    held_out: list[list[int]] = [[] for _ in rooms]
    shuffled = np.random.RandomState(seed).permutation(len(together))
    for place in sorted(shuffled, key=lambda place: -len(together[place])):
        group = together[place]
        fits = (fold for fold, room in enumerate(rooms) if len(held_out[fold]) + len(group) <= room)
        smallest = min(range(count), key=lambda fold: len(held_out[fold]))
        held_out[next(fits, smallest)] += group
    pairs = []
    for rest in (sorted(part) for part in held_out if part):
        held = set(rest)
        pairs.append(([place for place in range(len(groups)) if place not in held], rest))
    return pairs
