"""Sampled answers with the hidden states at a forced end token, from one layer in the model's middle.

A row that has ended is fed its end token in the next step of the others, on its own keys and values and the prompt's
shared ones: closing all answers takes one step of one token each, and no further pass over prompts or answers. The
cheap signals (entropy of each next token, probability of each drawn one) are read off the same steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kbtrain.errors import UserError
from kbtrain.llm.base import Sampling
from kbtrain.llm.hidden_states import Reading, StateTap
from kbtrain.llm.sampler.draw import Drawn, TokenStatistics, draw_top
from kbtrain.llm.sampler.prefill import SharedPrefixCache, keeps_all
from kbtrain.llm.sampler.sampler import LockstepSampler, Row, Stopper
from kbtrain.llm.sampler.shared_prefix import CopiedPrefixDecoder, SharedPrefixDecoder
from kbtrain.records import GREEDY, Sample

_TAIL = 16  # tokens that may follow the drawn ones: the end token, and what a stop token held before the stop string


@dataclass(frozen=True)
class AnswerWithStates:
    """One answer, the states (d,) at its forced end token, and the statistics of its tokens.

    ``entropy``: mean over its drawn tokens of the entropy of the model's next-token distribution; ``surprisal``: mean
    of -ln p of the drawn tokens (both in nats, unfiltered and at temperature 1). ``pieces``: text and p of each token
    of a greedy answer (of a sample: none). ``attention``: entropy of the layer's attention at the end token, from 0 to
    1 (:func:`~kbtrain.llm.hidden_states.attention_entropy`); nan where the model does not give its weights.
    """

    sample: Sample
    mlp: NDArray[np.float32]
    residual: NDArray[np.float32]
    entropy: float
    surprisal: float
    pieces: tuple[tuple[str, float], ...]
    attention: float = math.nan


@dataclass
class StateRow(Row):
    """``entropies`` and ``surprisals``: one number a drawn token; ``states``: MLP output and residual, (d,) each;
    ``attention``: its entropy where they were read."""

    entropies: list[float] = field(default_factory=list)
    surprisals: list[float] = field(default_factory=list)
    states: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
    attention: float = math.nan


class StateSampler(LockstepSampler[StateRow, AnswerWithStates]):
    """Answers with the states that ``tap`` reads at the token ``end``, which closes all of them.

    ``prefix`` (None: none): cache of what prompts begin with; batches that begin with it are prefilled from there.
    """

    row_type = StateRow
    merge = False  # a row's states come from a row of the batch of its own: merging moves their last digits
    tail_tokens = _TAIL
    skip_blank = True  # or, with a line break as stop, a model that begins with one would say nothing

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        sampling: Sampling,
        tap: StateTap,
        shared: bool = True,
        window: int | None = None,
    ) -> None:
        super().__init__(model, tokenizer, sampling, shared, window)
        self.tap = tap
        self.end = end_token(self.stopper, tokenizer)
        self.prefix: SharedPrefixCache | None = None
        self._reading = Reading()

    def prefix_of(self, prompts: Sequence[Sequence[int]]) -> SharedPrefixCache | None:
        """``prefix`` where all of these prompts begin with it, and no layer's cache loses a part of it."""
        if self.prefix is None or not self.prefix.fits(prompts):
            return None
        return self.prefix if self._fits(*prompts) or keeps_all(self.model) else None

    def _step(self, decoder: SharedPrefixDecoder | CopiedPrefixDecoder, newest: torch.Tensor) -> torch.Tensor:
        decoder.weigh(self.tap.layer)
        with self.tap.reading() as self._reading:
            return super()._step(decoder, newest)

    def _drawn(
        self, logits: torch.Tensor, uniforms: torch.Tensor, greedy: torch.Tensor, source: Sequence[int]
    ) -> Drawn:
        """Faster with a top-k filter. Of tokens that tie at rank k it keeps k, so its samples are its own in bf16."""
        s = self.sampling
        if 0 < s.top_k < logits.shape[-1]:
            return draw_top(logits, s.temperature, s.top_k, s.top_p, uniforms, greedy, source)
        return super()._drawn(logits, uniforms, greedy, source)

    def after_step(self, rows: Sequence[StateRow]) -> None:
        """Keep the states of rows whose end token was just fed."""
        mlp, residual = self._reading.mlp, self._reading.residual
        closed = [row for row in rows if row.finish is not None and not row.feed]
        if not closed or mlp is None or residual is None:
            return
        places = [row.sequence for row in closed]
        columns = (states[places].float().cpu().numpy() for states in (mlp, residual))
        for row, of_mlp, of_residual in zip(closed, *columns, strict=True):
            row.states = (of_mlp, of_residual)
        if self._reading.attention is not None:
            for row, spread in zip(closed, self._reading.attention[places].tolist(), strict=True):
                row.attention = spread

    def after_draw(self, rows: Sequence[StateRow], logits: torch.Tensor, drawn: Drawn) -> None:
        """Note the entropy of each row's next-token distribution, and the surprisal of the drawn token (nats)."""
        statistics = TokenStatistics.of(logits, drawn.tokens, [row.sequence for row in rows])
        columns = (statistics.entropies.tolist(), statistics.surprisals.tolist())
        for row, entropy, surprisal in zip(rows, *columns, strict=True):
            row.entropies.append(entropy)
            row.surprisals.append(surprisal)

    def tail(self, row: StateRow) -> list[int]:
        """Token ids that close the answer's text: equal texts end in equal tokens, whichever way they ended."""
        if row.finish == "length":
            return [row.tokens[-1], self.end]
        if row.finish == "eos":
            return [self.end]
        before = self.stopper.answer_text(row.tokens[:-1], row.opened)
        rest = self.stopper.text(row.tokens, row.opened)[len(before) :]
        ids: list[int] = self.tokenizer(rest, add_special_tokens=False)["input_ids"] if rest else []
        return [*(ids if len(ids) < _TAIL else row.tokens[-1:]), self.end]

    def _finished(self, row: StateRow) -> AnswerWithStates:
        if row.states is None:
            raise ValueError("an answer was not closed")
        pieces = _pieces(self.tokenizer, row.tokens) if row.index == GREEDY else []
        return AnswerWithStates(
            self._as_sample(row),
            *row.states,
            entropy=float(np.mean(row.entropies)),
            surprisal=float(np.mean(row.surprisals)),
            pieces=tuple((piece, float(np.exp(-s))) for piece, s in zip(pieces, row.surprisals, strict=False)),
            attention=row.attention,
        )


def end_token(stopper: Stopper, tokenizer: PreTrainedTokenizerBase) -> int:
    """The tokenizer's own end token, or else the smallest id of the model's: one id, or equal answers would differ.

    Raises :class:`UserError` for a model that has none.
    """
    if tokenizer.eos_token_id is not None:
        return int(tokenizer.eos_token_id)
    if not stopper.eos:
        raise UserError("this model has no end token, with which SeaKR closes every sample")
    return min(stopper.eos)


def _pieces(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> list[str]:
    """Text that each token adds (alone, some tokenizers decode it without its space)."""
    texts = ["", *(str(tokenizer.decode(list(tokens[: i + 1]), skip_special_tokens=True)) for i in range(len(tokens)))]
    return [text[len(before) :] for before, text in itertools.pairwise(texts)]
