"""Rows of a batch while their answers are drawn, and observers of a sampler's passes: statistics that gates need, read
without further passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from kbtrain.llm.base import UniformRow
from kbtrain.llm.sampler.draw import DrawnTokens, token_statistics, top
from kbtrain.records import Condition, Finish, Sample


@dataclass(frozen=True)
class PromptRows:
    """One prompt and the sample indices to draw for it (``GREEDY`` = -1 for the most probable tokens)."""

    question_id: str
    condition: Condition
    ids: tuple[int, ...]
    indices: tuple[int, ...]


@dataclass(eq=False)
class Row:
    """One answer while it is drawn. ``feed``: token ids still to be fed, one a step; empty: the row is done. ``place``:
    of its prompt in the batch. ``opened``: the prompt has opened reasoning. ``notes``: what each observer has read.
    ``sample``: the answer, once the batch is drawn."""

    place: int
    prompt: PromptRows
    index: int
    uniforms: UniformRow
    sequence: int = 0  # of the logits from which its next token is drawn: at first, its prompt's
    tokens: list[int] = field(default_factory=list)
    logprob: float = 0.0
    finish: Finish | None = None
    feed: list[int] = field(default_factory=list)
    fed: int = 0  # tokens behind the prompt
    opened: bool = False
    notes: dict[Any, Any] = field(default_factory=dict)
    sample: Sample | None = None


class Observer:
    """Reads nothing and changes nothing by itself: a statistic overrides the events that it is read from. Threads may
    share an observer: it stores what it reads of a row in ``row.notes[self]``."""

    def tail_limit(self, max_tokens: int) -> int:
        """Most tokens that :meth:`tail` gives behind an answer of at most ``max_tokens`` tokens."""
        return 0

    def reading(self, model: PreTrainedModel, rows: Sequence[Row], last: Sequence[int]) -> AbstractContextManager[Any]:
        """Context of a forward pass; its value goes to :meth:`on_prefill` or :meth:`on_step`. ``last``: by sequence,
        the place of its last token in what is fed. ``rows`` have no tokens before the prefill."""
        return nullcontext()

    def on_prefill(self, rows: Sequence[Row], read: Any) -> Sequence[Row]:
        """Called behind the prompts' pass (row r's prompt is ``r.sequence``); returns the rows to draw."""
        return rows

    def on_token(self, rows: Sequence[Row], logits: torch.Tensor, drawn: DrawnTokens) -> None:
        """Called when each of ``rows`` (rising by sequence) got its next token from ``logits[row.sequence]``. A row
        ends here if its ``finish`` is set and its ``feed`` is emptied."""

    def on_step(self, rows: Sequence[Row], read: Any) -> None:
        """Called when each of ``rows`` was fed a token. A row with ``finish`` and an empty ``feed`` ends here."""

    def tail(self, row: Row) -> Sequence[int]:
        """Token ids to feed behind an answer that has ended."""
        return ()

    def done(self, row: Row) -> None:
        """Called for each row at the end of its batch, in the order of prompts and indices; also for undrawn rows."""


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
