"""Residual stream of the answering model at its prompts' last tokens, and while it begins its answers.

States at the answer's own tokens tell right from wrong answers better than the prompt's last token does ("LLMs Know
More Than They Show", arXiv 2410.02707). They are read in the steps that generate the answer: no further pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from kbtrain.arrays import States
from kbtrain.llm.hidden_states import LastStates, decoder_layers, last_states
from kbtrain.llm.sampler.observer import Observer
from kbtrain.llm.sampler.rows import Row

PARTS = 3  # states side by side: at the prompt's last token, mean over the draft, at the draft's last token


@dataclass
class _Draft:
    """States (layers, d) of one row: at the prompt's last token, summed over the draft's tokens, at the newest one."""

    at_prompt: States
    summed: States | float = 0.0
    newest: States | None = None
    read: int = 0  # tokens

    def states(self) -> States:
        """(layers, 3 d). An answer that ends before its first word counts the prompt's last token as its own."""
        last = self.at_prompt if self.newest is None else self.newest
        mean = self.summed / self.read if self.read else self.at_prompt
        return np.concatenate([self.at_prompt, mean, last], axis=-1, dtype=np.float32)


class StatesObserver(Observer):
    """States after ``layers`` (None: all) at the prompts, and at the first ``tokens`` tokens of their answers.

    ``row.notes[observer].states()``: (layers, 3 d) of prompt and draft (:data:`PARTS`). ``take`` gets a row's
    (layers, 3 d) as soon as they are complete, each row once; without ``tokens`` there is no draft, and nothing is
    taken. ``reads``: the rows whose states are read.
    """

    def __init__(
        self,
        tokens: int,
        layers: Sequence[int] | None = None,
        take: Callable[[Row, States], object] = lambda row, states: None,
        reads: Callable[[Row], bool] = lambda row: True,
    ) -> None:
        self.tokens = tokens
        self.layers = layers
        self.take = take
        self.reads = reads

    def tail_limit(self, max_tokens: int) -> int:
        """The last token of a draft that is cut, which is read, too."""
        return int(0 < max_tokens <= self.tokens)

    def reading(
        self, model: PreTrainedModel, rows: Sequence[Row], last: Sequence[int]
    ) -> AbstractContextManager[LastStates | None]:
        """Hooks in the passes of prompts and drafts only."""
        if not any(self._is_due(row) for row in rows):
            return nullcontext()
        return last_states(model, range(len(decoder_layers(model))) if self.layers is None else self.layers, last)

    def on_prefill(self, rows: Sequence[Row], read: LastStates | None) -> Sequence[Row]:
        """Note the prompts' states."""
        if read is None:
            return rows
        states = read.array()
        for row in rows:
            if self._is_due(row):
                row.notes[self] = _Draft(states[row.sequence])
        return rows

    def on_step(self, rows: Sequence[Row], read: LastStates | None) -> None:
        """Note the states of the tokens that were fed, as far as they are the draft's."""
        if read is None:
            return
        states = read.array()
        for row in rows:
            draft: Any = row.notes.get(self)
            if draft is None or draft.read == self.tokens:
                continue
            draft.newest = states[row.sequence].copy()  # a view would keep the whole step's states
            draft.summed = draft.summed + draft.newest
            draft.read += 1
            if draft.read == self.tokens:
                self.take(row, draft.states())

    def tail(self, row: Row) -> Sequence[int]:
        """The last token of a draft that is cut; what follows an answer that has ended is not the answer's."""
        cut = row.finish == "length" and len(row.tokens) <= self.tokens
        return row.tokens[-1:] if cut and self.reads(row) else ()

    def done(self, row: Row) -> None:
        """Complete the draft of an answer that ended within it."""
        draft = row.notes.get(self)
        if draft is not None and draft.read < self.tokens:
            self.take(row, draft.states())

    def _is_due(self, row: Row) -> bool:
        """True if the row's next pass is read."""
        if self not in row.notes:
            return not row.tokens and self.reads(row)
        return bool(row.notes[self].read < self.tokens)
