"""Residual stream of the answering model while it drafts its answer: what it is about to say is known to it by then.

States at the answer's own tokens tell right from wrong answers better than the prompt's last token does ("LLMs Know
More Than They Show", arXiv 2410.02707). They are read in the steps that generate the draft: no further pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from kbtrain.gates.answering import drawn
from kbtrain.gates.probe.states import as_array, last_states
from kbtrain.llm.base import Sampling
from kbtrain.llm.hidden_states import decoder_layers
from kbtrain.llm.sampler.sampler import BatchSampler, PromptRows, Row
from kbtrain.llm.sampler.shared_prefix import CopiedPrefixDecoder, SharedPrefixDecoder
from kbtrain.records import GREEDY, Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

    States = NDArray[np.float32]

PARTS = 3  # states that stand side by side: at the prompt's last token, mean over the draft, at the draft's last token


@dataclass
class StatesRow(Row):
    """One answer while it is drawn, and its draft's states (layers, d): at the prompt's last token, summed, newest."""

    at_prompt: States | None = None
    summed: States | float = 0.0
    newest: States | None = None
    fed: int = 0

    def states(self) -> States:
        """(layers, 3 d). An answer that ends before its first word counts the prompt's last token as its own."""
        if self.at_prompt is None:
            raise ValueError("a draft's prompt was not read")
        last = self.at_prompt if self.newest is None else self.newest
        mean = self.summed / self.fed if self.fed else self.at_prompt
        return np.concatenate([self.at_prompt, mean, last], axis=-1, dtype=np.float32)


@dataclass(frozen=True)
class DraftStates:
    """``states`` (layers, 3 d) in fp32: :data:`PARTS`; ``tokens``: how many were generated."""

    states: States = field(repr=False)
    tokens: int


class DraftStateSampler(BatchSampler):
    """Greedy answers with the states after each of ``layers`` at their first ``tokens`` tokens; by question id.

    ``layers`` None: all of the model's.
    """

    row_type = StatesRow
    tail_tokens = 1  # the last token of a draft that is cut is read, too

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        sampling: Sampling,
        tokens: int,
        layers: Sequence[int] | None = None,
        shared: bool = True,
        window: int | None = None,
    ) -> None:
        super().__init__(model, tokenizer, sampling, shared, window)
        self.tokens = tokens
        self.layers = range(len(decoder_layers(model))) if layers is None else layers
        self.read: dict[str, DraftStates] = {}
        self._of_prompts: States = np.empty(0, dtype=np.float32)
        self._of_step: States = self._of_prompts

    def _prefill(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[DynamicCache, torch.Tensor]:
        prefix = self.prefix_of(prompts)  # before the states are read: its own pass is of no prompt's last token
        behind = 0 if prefix is None else len(prefix.ids)
        with last_states(self.model, self.layers, [len(ids) - 1 - behind for ids in prompts]) as read:
            made = super()._prefill(prompts, room)
        self._of_prompts = as_array(self.model, read)
        return made

    def wanted(self, rows: list[Row]) -> list[Row]:
        """All of them, each with its prompt's states."""
        for row in rows:
            cast(StatesRow, row).at_prompt = self._of_prompts[row.sequence]
        return rows

    def _step(self, decoder: SharedPrefixDecoder | CopiedPrefixDecoder, newest: torch.Tensor) -> torch.Tensor:
        with last_states(self.model, self.layers, [0] * len(newest)) as read:
            logits = super()._step(decoder, newest)
        self._of_step = as_array(self.model, read)
        return logits

    def after_step(self, rows: Sequence[Row]) -> None:
        """Note the states of the tokens that were just fed, as far as they are the draft's."""
        for row in cast("Sequence[StatesRow]", rows):
            if row.fed < self.tokens:
                row.newest = self._of_step[row.sequence].copy()  # of the whole step no more than this is kept
                row.summed = row.summed + row.newest
                row.fed += 1

    def tail(self, row: Row) -> list[int]:
        """The last token of a draft that was cut; behind one that has ended comes nothing of the answer's."""
        return [row.tokens[-1]] if row.finish == "length" else []

    def drafted(self, row: StatesRow) -> None:
        """Note the states of an answer that is done; its draft may have been so before."""
        self.read[row.question_id] = DraftStates(row.states(), len(row.tokens))

    def _finished(self, row: Row) -> Sample:
        self.drafted(cast(StatesRow, row))
        return super()._finished(row)


def draft_states(sampler: DraftStateSampler, prompts: Sequence[Sequence[int]]) -> list[DraftStates]:
    """Of each prompt, in their order. Raises :class:`UserError` for states that are no numbers."""
    rows = [PromptRows(f"prompt {n}", "llm", tuple(ids), (GREEDY,)) for n, ids in enumerate(prompts)]
    drawn(sampler, rows)
    return [sampler.read.pop(row.question_id) for row in rows]
