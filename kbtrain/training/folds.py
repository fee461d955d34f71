"""Folds of cross-validation that keep questions about one entity, and turns of one dialogue, together.

What a gate has learnt of an entity it knows whatever is asked of it: a held-out score of a question whose entity was
fitted to would be better than those of new questions are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbtrain.questions.linked import linked
from kbtrain.records import Example
from kbtrain.trained_on import entity_hashes

FOLDS = 5


def groups_of(examples: Iterable[Example]) -> list[int]:
    """A number for each example, equal for those that share an entity or a dialogue, directly or through others.

    Examples without entities are alone, as all are where everything hangs together and no two groups are left.
    """
    begun: dict[str, int] = {}
    keys = linked([entity_hashes(example) for example in examples])
    found = [place if key is None else begun.setdefault(key, place) for place, key in enumerate(keys)]
    return found if len(set(found)) > 1 else list(range(len(found)))


def members(groups: Sequence[int]) -> list[list[int]]:
    """Places of each group, in the order in which the groups begin."""
    found: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        found.setdefault(group, []).append(place)
    return list(found.values())


def folds(groups: Sequence[int], seed: int, count: int = FOLDS) -> list[tuple[list[int], list[int]]]:
    """Places to fit to and places held out of each fold: whole groups, drawn by ``seed``; of a single group, as a fold
    of two may leave one, its places.
    """
    from sklearn.model_selection import KFold

    together = members(groups if len(set(groups)) > 1 else range(len(groups)))
    found = []
    for _, chosen in KFold(min(count, len(together)), shuffle=True, random_state=seed).split(together):
        rest = sorted(place for one in chosen for place in together[one])
        held = set(rest)
        found.append(([place for place in range(len(groups)) if place not in held], rest))
    return found
