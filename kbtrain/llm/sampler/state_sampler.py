"""Sampled answers with the hidden states at a forced end token, from one layer in the model's middle.

A row that has ended is fed its end token in the next step of the others: no further pass over prompts or answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kbtrain.arrays import States
from kbtrain.errors import UserError
from kbtrain.llm.base import Sampling
from kbtrain.llm.sampler.draw import DrawnTokens, draw_top
from kbtrain.llm.sampler.hidden_states import StatesReading, StateTap
from kbtrain.llm.sampler.observer import Observer, PromptRows, Row, TokenUncertainty, Uncertainties
from kbtrain.llm.sampler.prefill import SharedPrefixCache, keeps_all
from kbtrain.llm.sampler.sampler import LockstepSampler, Stopper
from kbtrain.records import GREEDY, Sample

TAIL_TOKENS = 16  # that may follow the drawn ones: the end token, and what a stop token held before the stop string


@dataclass(frozen=True)
class AnswerWithStates:
    """One answer, the states (d,) at its forced end token, and the statistics of its tokens. ``entropy``: mean over its
    drawn tokens of the entropy of the model's next-token distribution; ``surprisal``: mean of -ln p of the drawn tokens
    (both in nats, unfiltered and at temperature 1). ``pieces``: text and p of each token of a greedy answer (of a
    sample: none)."""

    sample: Sample
    mlp: States
    residual: States
    entropy: float
    surprisal: float
    pieces: tuple[tuple[str, float], ...]


class StateSampler(LockstepSampler):
    """Answers with the states that ``tap`` reads at the token ``end``, which closes all of them. ``prefix``: cache of
    what prompts begin with, or None."""

    merge = False  # a row's states come from a row of the batch of its own: merging moves their last digits

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sampling: Sampling, tap: StateTap
    ) -> None:
        super().__init__(model, tokenizer, sampling)
        self.tap = tap
        self.end = end_token(self.stopper, tokenizer)
        self.prefix: SharedPrefixCache | None = None

    def prefix_of(self, prompts: Sequence[Sequence[int]]) -> SharedPrefixCache | None:
        """``prefix`` where all of these prompts begin with it, and no layer's cache loses a part of it."""
        if self.prefix is None or not self.prefix.fits(prompts):
            return None
        return self.prefix if self._fits(*prompts) or keeps_all(self.model) else None

    def _draw_tokens(
        self, logits: torch.Tensor, uniforms: torch.Tensor, greedy: torch.Tensor, source: Sequence[int]
    ) -> DrawnTokens:
        """Faster with a top-k filter. Of tokens that tie at rank k it keeps k, so its samples are its own in bf16."""
        if 0 < self.sampling.top_k < logits.shape[-1]:
            return draw_top(logits, self.sampling, uniforms, greedy, source)
        return super()._draw_tokens(logits, uniforms, greedy, source)

    def sample_with_states(self, prompts: Sequence[PromptRows]) -> list[list[AnswerWithStates]]:
        states, uncertainty = EndStates(self.tap, self.stopper, self.end), TokenUncertainty(ratios=False)
        rows = self.observed(states, uncertainty).draw(prompts)
        return [[self._with_states(row, states, uncertainty) for row in of_prompt] for of_prompt in rows]

    def _with_states(self, row: Row, states: EndStates, uncertainty: TokenUncertainty) -> AnswerWithStates:
        if row.sample is None or states not in row.notes:
            raise ValueError("an answer was not closed")
        pieces = _pieces(self.tokenizer, row.tokens) if row.index == GREEDY else []
        mlp, residual = row.notes[states]
        uncertainties: Uncertainties = row.notes[uncertainty]
        return AnswerWithStates(
            row.sample,
            mlp,
            residual,
            entropy=float(np.mean(uncertainties.entropies)),
            surprisal=float(np.mean(uncertainties.surprisals)),
            pieces=tuple(
                (piece, float(np.exp(-s))) for piece, s in zip(pieces, uncertainties.surprisals, strict=False)
            ),
        )


class EndStates(Observer):
    """``row.notes[observer]``: MLP output and residual stream that ``tap`` reads at the token ``end``, which is fed
    behind every answer."""

    def __init__(self, tap: StateTap, stopper: Stopper, end: int) -> None:
        self.tap = tap
        self.stopper = stopper
        self.end = end

    def tail_limit(self, max_tokens: int) -> int:
        """The end token, and what a stop token held before the stop string."""
        return TAIL_TOKENS

    def reading(
        self, model: PreTrainedModel, rows: Sequence[Row], last: Sequence[int]
    ) -> AbstractContextManager[StatesReading | None]:
        """Hooks in the passes that end tokens are fed to."""
        return self.tap.reading() if any(row.finish and len(row.feed) == 1 for row in rows) else nullcontext()

    def on_step(self, rows: Sequence[Row], read: StatesReading | None) -> None:
        if read is None or read.mlp is None or read.residual is None:
            return
        closed = [row for row in rows if row.finish is not None and not row.feed]
        places = [row.sequence for row in closed]
        mlp, residual = (states[places].float().cpu().numpy() for states in (read.mlp, read.residual))
        for row, *both in zip(closed, mlp, residual, strict=True):
            row.notes[self] = both

    def tail(self, row: Row) -> list[int]:
        """Token ids that close the answer's text: equal texts end in equal tokens, however they ended."""
        if row.finish == "length":
            return [row.tokens[-1], self.end]
        if row.finish == "eos":
            return [self.end]
        before = self.stopper.answer_text(row.tokens[:-1], row.opened)
        rest = self.stopper.read(row.tokens, "length", row.opened).text[len(before) :]
        ids: list[int] = self.stopper.tokenizer(rest, add_special_tokens=False)["input_ids"] if rest else []
        return [*(ids if len(ids) < TAIL_TOKENS else row.tokens[-1:]), self.end]


def end_token(stopper: Stopper, tokenizer: PreTrainedTokenizerBase) -> int:
    """The tokenizer's own end token, or else the smallest id of the model's: one id, or equal answers would differ."""
    if tokenizer.eos_token_id is not None:
        return int(tokenizer.eos_token_id)
    if not stopper.eos:
        raise UserError("this model has no end token, which SeaKR needs at the end of every sample")
    return min(stopper.eos)


def _pieces(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> list[str]:
    """Text that each token adds (alone, some tokenizers decode it without its space)."""
    texts = ["", *(str(tokenizer.decode(list(tokens[: i + 1]), skip_special_tokens=True)) for i in range(len(tokens)))]
    return [text[len(before) :] for before, text in itertools.pairwise(texts)]
