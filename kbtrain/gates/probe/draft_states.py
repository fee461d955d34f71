"""Residual stream of the answering model while it drafts its answer: what it is about to say is known to it by then.

States at the answer's own tokens tell right from wrong answers better than the prompt's last token does ("LLMs Know
More Than They Show", arXiv 2410.02707). They are read in the steps that generate the draft: no further pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from kbtrain.gates.probe.states import as_array, last_states
from kbtrain.llm.base import Sampling
from kbtrain.llm.hidden_states import decoder_layers
from kbtrain.llm.sampler.sampler import LockstepSampler, PromptRows, Row
from kbtrain.llm.sampler.shared_prefix import CopiedPrefixDecoder, SharedPrefixDecoder
from kbtrain.models.batching import BatchLimits, batches
from kbtrain.records import GREEDY

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

    States = NDArray[np.float32]

PARTS = 3  # states that stand side by side: at the prompt's last token, mean over the draft, at the draft's last token


@dataclass
class StatesRow(Row):
    """One draft while it is drawn, and its states (layers, d): at the prompt's last token, summed, and the newest."""

    at_prompt: States | None = None
    summed: States | float = 0.0
    newest: States | None = None
    fed: int = 0


@dataclass(frozen=True)
class DraftStates:
    """``states`` (layers, 3 d) in fp32: :data:`PARTS`; ``tokens``: how many were generated."""

    states: States = field(repr=False)
    tokens: int


class DraftStateSampler(LockstepSampler[StatesRow, DraftStates]):
    """Greedy beginnings of answers with the states after every layer at each of their tokens.

    A draft that ends before its first token (an empty answer) counts the prompt's last token as its own.
    """

    row_type = StatesRow
    tail_tokens = 1  # the last token of a draft that is cut is read, too

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tokens: int, shared: bool = True
    ) -> None:
        super().__init__(model, tokenizer, Sampling(max_new_tokens=tokens), shared)
        self._layers = range(len(decoder_layers(model)))
        self._of_prompts: States = np.empty(0, dtype=np.float32)
        self._of_step: States = self._of_prompts

    def states_of(self, prompts: Sequence[Sequence[int]]) -> list[DraftStates]:
        """In the order of the prompts. Raises :class:`UserError` for states that are no numbers."""
        rows = [PromptRows(f"prompt {n}", "llm", tuple(ids), (GREEDY,)) for n, ids in enumerate(prompts)]
        place = {row.question_id: n for n, row in enumerate(rows)}
        found: dict[int, DraftStates] = {}
        for batch in batches(rows, BatchLimits()):
            for row, answers in zip(batch, self.sample(batch), strict=True):
                found[place[row.question_id]] = answers[0]
        return [found[n] for n in range(len(rows))]

    def _prefill(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[DynamicCache, torch.Tensor]:
        with last_states(self.model, self._layers, [len(ids) - 1 for ids in prompts]) as read:
            made = super()._prefill(prompts, room)
        self._of_prompts = as_array(read)
        return made

    def wanted(self, rows: list[StatesRow]) -> list[StatesRow]:
        """All of them, each with its prompt's states."""
        for row in rows:
            row.at_prompt = self._of_prompts[row.sequence]
        return rows

    def _step(self, decoder: SharedPrefixDecoder | CopiedPrefixDecoder, newest: torch.Tensor) -> torch.Tensor:
        with last_states(self.model, self._layers, [0] * len(newest)) as read:
            logits = super()._step(decoder, newest)
        self._of_step = as_array(read)
        return logits

    def after_step(self, rows: Sequence[StatesRow]) -> None:
        """Note the states of the tokens that were just fed."""
        for row in rows:
            row.newest = self._of_step[row.sequence].copy()  # of the whole step no more than this is kept
            row.summed = row.summed + row.newest
            row.fed += 1

    def tail(self, row: StatesRow) -> list[int]:
        """The last token of a draft that was cut; behind one that has ended comes nothing of the answer's."""
        return [row.tokens[-1]] if row.finish == "length" else []

    def _finished(self, row: StatesRow) -> DraftStates:
        if row.at_prompt is None:
            raise ValueError("a draft's prompt was not read")
        last = row.at_prompt if row.newest is None else row.newest
        mean = row.summed / row.fed if row.fed else row.at_prompt
        return DraftStates(np.concatenate([row.at_prompt, mean, last], axis=-1, dtype=np.float32), len(row.tokens))
