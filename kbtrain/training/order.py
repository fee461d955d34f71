"""The order of the rows: batches of like length, shuffled, a function of (seed, epoch) alone so that a run resumes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence


def epoch_order(lengths: Sequence[int], group: int, seed: int, epoch: int) -> list[int]:
    """Indices such that each ``group`` consecutive ones (all rows of one step) are of like length.

    Rows of equal length change places each epoch, and so do the groups. What fills no whole group comes last: rows
    next to each other in length, taken from a random place.
    """
    draw = random.Random(f"{seed}/{epoch}")
    order = list(range(len(lengths)))
    draw.shuffle(order)
    order.sort(key=lambda i: lengths[i])
    whole, rest = divmod(len(order), group)
    at = draw.randrange(whole + 1) * group
    last = order[at : at + rest]
    del order[at : at + rest]
    groups = [order[i * group : (i + 1) * group] for i in range(whole)]
    draw.shuffle(groups)
    return [i for g in groups for i in g] + last


class LikeLengthSampler:
    """A sampler for torch's DataLoader; ``epoch`` is asked anew each time it is iterated over."""

    def __init__(self, lengths: Sequence[int], group: int, seed: int, epoch: Callable[[], int]) -> None:
        self.lengths = list(lengths)
        self.group = group
        self.seed = seed
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        return iter(epoch_order(self.lengths, self.group, self.seed, self.epoch()))
