"""Uncertainty of each drawn token: entropy, surprisal, and the ratio of the two highest probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kbtrain.llm.sampler.draw import DrawnTokens, token_statistics, top
from kbtrain.llm.sampler.observer import Observer
from kbtrain.llm.sampler.rows import Row


@dataclass(frozen=True)
class Uncertainties:
    """By token, of the model's next-token distribution: its entropy, -ln p of the drawn token (both in nats), and the
    ratio of its second to its first probability (1: two are equally probable)."""

    entropies: list[float] = field(default_factory=list)
    surprisals: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)


class TokenUncertainty(Observer):
    """``row.notes[observer]``: :class:`Uncertainties`. ``ratios`` False: without their ratios."""

    def __init__(self, ratios: bool = True) -> None:
        self.ratios = ratios

    def on_token(self, rows: Sequence[Row], logits: torch.Tensor, drawn: DrawnTokens) -> None:
        """Note the numbers of each row's next-token distribution."""
        entropies, surprisals = token_statistics(logits, drawn.tokens, [row.sequence for row in rows])
        for row, entropy, surprisal in zip(rows, entropies.tolist(), surprisals.tolist(), strict=True):
            uncertainties = row.notes.setdefault(self, Uncertainties())
            uncertainties.entropies.append(entropy)
            uncertainties.surprisals.append(surprisal)
        if self.ratios:
            highest, _ = top(logits, 2)
            ratios = torch.exp(highest[:, 1].float() - highest[:, 0].float()).tolist()
            for row in rows:
                row.notes[self].ratios.append(ratios[row.sequence])
