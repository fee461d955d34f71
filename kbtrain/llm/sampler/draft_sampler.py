"""Greedy beginnings of answers, with the uncertainty of each of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kbtrain.llm.sampler.draw import Drawn, TokenStatistics, top
from kbtrain.llm.sampler.sampler import LockstepSampler, Row
from kbtrain.records import Sample


@dataclass(frozen=True)
class Draft:
    """The beginning of a greedy answer, and by token the entropy of the model's distribution (nats) and the ratio of
    its second to its first probability (1: two are equally probable)."""

    sample: Sample
    entropies: tuple[float, ...]
    ratios: tuple[float, ...]


@dataclass
class DraftRow(Row):
    """One draft while it is drawn."""

    entropies: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)


class DraftSampler(LockstepSampler[DraftRow, Draft]):
    """The decode loop of all samplers, with two numbers a token kept."""

    row_type = DraftRow

    def after_draw(self, rows: Sequence[DraftRow], logits: torch.Tensor, drawn: Drawn) -> None:
        """Note both numbers of each row's next-token distribution."""
        source = [row.sequence for row in rows]
        entropies = TokenStatistics.of(logits, drawn.tokens, source).entropies.tolist()
        highest, _ = top(logits, 2)
        ratios = torch.exp(highest[:, 1].float() - highest[:, 0].float()).tolist()
        for row, entropy in zip(rows, entropies, strict=True):
            row.entropies.append(entropy)
            row.ratios.append(ratios[row.sequence])

    def _finished(self, row: DraftRow) -> Draft:
        return Draft(self._as_sample(row), tuple(row.entropies), tuple(row.ratios))
