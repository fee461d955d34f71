"""Samples answers and closes each with a forced end token, whose states in the model's middle are kept.

A row that has ended is fed its end token in the next step of the others, on its own keys and values and the prompt's
shared ones: closing all answers takes one step of one token each, and no pass over prompt or answers again. What the
cheap signals need (entropy of each next token, probability of each drawn one) is read off the same steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kbtrain.errors import UserError
from kbtrain.kernels.memory import keep_freed_memory
from kbtrain.kernels.packed_linear import PackedLinears
from kbtrain.llm.base import Sampling
from kbtrain.llm.hidden_states import Reading, StateTap
from kbtrain.llm.sampler.draw import Drawn, TokenStatistics, UniformRow, draw, draw_top, filtered
from kbtrain.llm.sampler.prefill import SharedPrefixCache, prefill
from kbtrain.llm.sampler.sampler import LEAVE, PromptRows, Stopper
from kbtrain.llm.sampler.shared_prefix import CopiedPrefixDecoder, SharedPrefixDecoder, room_behind
from kbtrain.records import GREEDY, Finish, Sample

_TAIL = 16  # tokens that may follow the drawn ones: the end token, and what a stop token held before the stop string


@dataclass(frozen=True)
class AnswerWithStates:
    """One answer and what it left: states (d,) at its forced end token, and its tokens' statistics.

    ``entropy``: mean over its drawn tokens of the entropy of the model's next-token distribution; ``surprisal``: mean
    of -ln p of the drawn tokens (both in nats, unfiltered and at temperature 1). ``pieces``: text and p of each token
    of a greedy answer (of a sample: none).
    """

    sample: Sample
    mlp: NDArray[np.float32]
    residual: NDArray[np.float32]
    entropy: float
    surprisal: float
    pieces: tuple[tuple[str, float], ...]


@dataclass
class _Row:
    prompt: int
    name: str
    index: int
    uniforms: UniformRow
    tokens: list[int] = field(default_factory=list)
    logprob: float = 0.0
    entropies: list[float] = field(default_factory=list)
    surprisals: list[float] = field(default_factory=list)
    finish: Finish | None = None
    tail: list[int] = field(default_factory=list)  # still to be fed
    states: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None


class StateSampler:
    """As :class:`~kbtrain.llm.sampler.sampler.BatchSampler`, with closed answers.

    ``end`` is the one token that closes all.

    ``head`` (None: nothing) is what the prompts have in common; batches that begin with it are prefilled behind it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        sampling: Sampling,
        tap: StateTap,
        shared: bool = True,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.tap = tap
        self.shared = shared
        self.stopper = Stopper(model, tokenizer, sampling.stop)
        self.end = end_token(self.stopper, tokenizer)
        self.head: SharedPrefixCache | None = None
        self._packed = PackedLinears(model)
        keep_freed_memory()

    def sample(self, prompts: Sequence[PromptRows]) -> list[list[AnswerWithStates]]:
        """Closed answers of each prompt, in the order of its ``indices``."""
        with torch.inference_mode(), self._packed:
            return self._sample(prompts)

    def _sample(self, prompts: Sequence[PromptRows]) -> list[list[AnswerWithStates]]:
        rows = [
            _Row(
                p,
                prompt.question_id,
                index,
                UniformRow(self.sampling.seed, prompt.question_id, prompt.condition, index),
            )
            for p, prompt in enumerate(prompts)
            for index in prompt.indices
        ]
        groups = [range(len(prompts))] if self.shared else [range(p, p + 1) for p in range(len(prompts))]
        for group in groups:
            self._decode([prompts[p] for p in group], [row for row in rows if row.prompt in group])
        closed: list[list[AnswerWithStates]] = [[] for _ in prompts]
        for row in rows:
            closed[row.prompt].append(self._closed(row))
        return closed

    def _decode(self, prompts: Sequence[PromptRows], rows: list[_Row]) -> None:
        kind = SharedPrefixDecoder if self.shared else CopiedPrefixDecoder
        ids = [prompt.ids for prompt in prompts]
        headed = self.head is not None and self.head.fits(ids)
        lengths, most = [len(p.ids) for p in prompts], self.sampling.max_new_tokens + _TAIL
        room = room_behind(lengths, most)
        if self.head and headed:
            cache, logits = self.head.prefill(ids, room)
        else:
            cache, logits = prefill(self.model, ids, self.shared, room=room)
        source = [row.prompt - rows[0].prompt for row in rows]
        self._choose(rows, logits, source)
        decoder = kind(self.model, cache, lengths, source, most)
        alive = rows
        with self.tap.reading() as reading:
            while True:
                fed = torch.tensor([_feed(row, self.end) for row in alive], device=self.model.device)
                logits = decoder.step(fed)
                _take_states(alive, reading)
                drawing = [i for i, row in enumerate(alive) if row.finish is None]
                if drawing:
                    self._choose([alive[i] for i in drawing], logits, drawing)
                going = [i for i, row in enumerate(alive) if row.states is None]
                if not going:
                    return
                if len(going) <= LEAVE * len(alive):
                    decoder.keep(going)
                    alive = [alive[i] for i in going]

    def _choose(self, rows: list[_Row], logits: torch.Tensor, source: Sequence[int]) -> None:
        """Draw the next token of each row; row i's logits are line ``source[i]`` (rising)."""
        _check_numbers(rows, logits, source)
        step = len(rows[0].tokens)
        uniforms = torch.tensor([row.uniforms.at(step) for row in rows], dtype=torch.float64, device=logits.device)
        greedy = torch.tensor([row.index == GREEDY for row in rows], device=logits.device)
        drawn = self._draw(logits, uniforms, greedy, source)
        told = TokenStatistics.of(logits, drawn.tokens, source)
        columns = (drawn.tokens, drawn.logprobs, told.entropies, told.surprisals)
        for row, token, logprob, entropy, surprisal in zip(rows, *(c.tolist() for c in columns), strict=True):
            row.tokens.append(token)
            row.logprob += logprob
            row.entropies.append(entropy)
            row.surprisals.append(surprisal)
            row.finish = self.stopper.finish(row.tokens)
            if row.finish is None and len(row.tokens) == self.sampling.max_new_tokens:
                row.finish = "length"
            if row.finish is not None:
                row.tail = self._tail(row)

    def _draw(self, logits: torch.Tensor, uniforms: torch.Tensor, greedy: torch.Tensor, source: Sequence[int]) -> Drawn:
        s = self.sampling
        if 0 < s.top_k < logits.shape[-1]:
            return draw_top(logits, s.temperature, s.top_k, s.top_p, uniforms, greedy, source)
        return draw(filtered(logits, s.temperature, s.top_k, s.top_p), uniforms, greedy, source)

    def _tail(self, row: _Row) -> list[int]:
        """What closes the answer's text: equal texts end in equal tokens, whichever way they ended."""
        if row.finish == "length":
            return [row.tokens[-1], self.end]
        if row.finish == "eos":
            return [self.end]
        before = str(self.tokenizer.decode(row.tokens[:-1], skip_special_tokens=True))
        rest = self.stopper.text(row.tokens)[len(before) :]
        ids: list[int] = self.tokenizer(rest, add_special_tokens=False)["input_ids"] if rest else []
        return [*(ids if len(ids) < _TAIL else row.tokens[-1:]), self.end]

    def _closed(self, row: _Row) -> AnswerWithStates:
        if row.states is None:
            raise ValueError("an answer was not closed")
        text = self.stopper.text(row.tokens)
        sample = Sample(row.index, text, len(row.tokens), row.finish or "length", row.logprob)
        pieces = _pieces(self.tokenizer, row.tokens) if row.index == GREEDY else []
        return AnswerWithStates(
            sample,
            *row.states,
            entropy=float(np.mean(row.entropies)),
            surprisal=float(np.mean(row.surprisals)),
            pieces=tuple((piece, float(np.exp(-s))) for piece, s in zip(pieces, row.surprisals, strict=False)),
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
    """What each token adds to the text (alone, some tokenizers decode it without its space)."""
    texts = ["", *(str(tokenizer.decode(list(tokens[: i + 1]), skip_special_tokens=True)) for i in range(len(tokens)))]
    return [text[len(before) :] for before, text in itertools.pairwise(texts)]


def _check_numbers(rows: Sequence[_Row], logits: torch.Tensor, source: Sequence[int]) -> None:
    """Raises :class:`UserError` naming the first prompt whose logits are not numbers: then its states are none."""
    bad = logits.amax(dim=-1).isnan()
    if bool(bad.any()):
        name = next(row.name for row, line in zip(rows, source, strict=True) if bad[line])
        raise UserError(f"'{name}': hidden states are not numbers; try dtype fp32 (or bf16)")


def _feed(row: _Row, end: int) -> int:
    """The newest token while drawing, then the tail; a row that is done repeats its end until it leaves."""
    if row.finish is None:
        return row.tokens[-1]
    return row.tail.pop(0) if row.tail else end


def _take_states(rows: Sequence[_Row], reading: Reading) -> None:
    """Keep the states of rows whose end token was just fed."""
    ended = [i for i, row in enumerate(rows) if row.finish is not None and not row.tail and row.states is None]
    if not ended or reading.mlp is None or reading.residual is None:
        return
    mlp, residual = (states[ended].float().cpu().numpy() for states in (reading.mlp, reading.residual))
    for i, of_mlp, of_residual in zip(ended, mlp, residual, strict=True):
        rows[i].states = (of_mlp, of_residual)
