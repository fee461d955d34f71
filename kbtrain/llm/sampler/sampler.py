"""Draws the answers of one batch of prompts: prefill once, then all in lockstep until each has ended."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from kbtrain.kernels.memory import keep_freed_memory
from kbtrain.kernels.packed_linear import PackedLinears
from kbtrain.kernels.side_by_side import replica
from kbtrain.llm.base import Sampling
from kbtrain.llm.sampler.decoders import CopiedPrefixDecoder, SharedPrefixDecoder, room_behind
from kbtrain.llm.sampler.draw import draw, filtered
from kbtrain.llm.sampler.lines import Lines
from kbtrain.llm.sampler.prefill import prefill
from kbtrain.llm.sampler.prompt_head import PromptHead, common_start
from kbtrain.llm.sampler.stopping import Stopper
from kbtrain.llm.sampler.uniforms import UniformRow
from kbtrain.records import GREEDY, Condition, Finish, Sample

_HEAD = 8  # tokens with which all prompts of a batch begin, from which on they are computed once


@dataclass(frozen=True)
class PromptRows:
    """One prompt and the sample indices to draw for it (``GREEDY`` = -1 for the most probable tokens)."""

    question_id: str
    condition: Condition
    ids: tuple[int, ...]
    indices: tuple[int, ...]


@dataclass
class _Row:
    prompt: int
    index: int
    uniforms: UniformRow
    line: int = 0  # of the logits, from which its next token is drawn: at first, its prompt's
    tokens: list[int] = field(default_factory=list)
    logprob: float = 0.0
    finish: Finish | None = None


class BatchSampler:
    """Answers for batches of prompts. ``shared`` False copies the prefix (for models the shared one can't serve)."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sampling: Sampling, shared: bool = True
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.shared = shared
        self.stopper = Stopper(model, tokenizer, sampling.stop)
        self._packed = PackedLinears(model)
        self._head: PromptHead | None = None  # the newest batch's
        keep_freed_memory()

    def twin(self) -> BatchSampler:
        """Another sampler with the same weights, for another thread."""
        model, tokenizer = replica(self.model), copy.deepcopy(self.tokenizer)
        made = BatchSampler(model, tokenizer, self.sampling, self.shared)
        made._packed = PackedLinears(model, self._packed.weights)
        return made

    def sample(self, prompts: Sequence[PromptRows]) -> list[list[Sample]]:
        """Samples of each prompt, in the order of its ``indices``."""
        with torch.inference_mode(), self._packed:
            return self._sample(prompts)

    def _sample(self, prompts: Sequence[PromptRows]) -> list[list[Sample]]:
        rows = [
            _Row(p, index, UniformRow(self.sampling.seed, prompt.question_id, prompt.condition, index))
            for p, prompt in enumerate(prompts)
            for index in prompt.indices
        ]
        if self.shared:
            self._decode(prompts, rows, SharedPrefixDecoder)
        else:  # one prompt at a time
            for p, prompt in enumerate(prompts):
                self._decode([prompt], [row for row in rows if row.prompt == p], CopiedPrefixDecoder)
        finished: list[list[Sample]] = [[] for _ in prompts]
        for row in rows:
            finished[row.prompt].append(self._finished(row))
        return finished

    def _decode(
        self,
        prompts: Sequence[PromptRows],
        rows: list[_Row],
        decoder_kind: Callable[..., SharedPrefixDecoder | CopiedPrefixDecoder],
    ) -> None:
        for row in rows:
            row.line = row.prompt - rows[0].prompt
        cache, logits = self._prefill([prompt.ids for prompt in prompts])
        going = self._choose(rows, logits)
        if not going:
            return
        lines = Lines(going)
        lengths, room = [len(p.ids) for p in prompts], self.sampling.max_new_tokens
        decoder = decoder_kind(self.model, cache, lengths, lines.questions, room, most=len(going))
        while True:
            newest = torch.tensor(lines.newest, device=self.model.device)
            going = self._choose(going, decoder.step(newest))
            if not going:
                return
            lines.grow(going, decoder)

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[DynamicCache, torch.Tensor]:
        """A function of these prompts alone, down to rounding: the head is what they have in common, not what others
        had."""
        room = room_behind([len(ids) for ids in prompts], self.sampling.max_new_tokens)
        head = common_start(prompts) if self.shared and len(prompts) > 1 else ()
        if len(head) < _HEAD:
            return prefill(self.model, prompts, self.shared, room=room)
        if self._head is None or self._head.ids != head or not self._head.current():
            self._head = PromptHead(self.model, head, self.shared)
        return self._head.prefill(prompts, room)

    def _choose(self, rows: list[_Row], logits: torch.Tensor) -> list[_Row]:
        """Give each row its next token, drawn from its line of the logits; returns the rows that go on."""
        s = self.sampling
        rows = sorted(rows, key=lambda row: row.line)
        step = len(rows[0].tokens)
        uniforms = torch.tensor([row.uniforms.at(step) for row in rows], dtype=torch.float64, device=logits.device)
        greedy = torch.tensor([row.index == GREEDY for row in rows], device=logits.device)
        scores = filtered(logits, s.temperature, s.top_k, s.top_p)
        drawn = draw(scores, uniforms, greedy, [row.line for row in rows])
        for row, token, logprob in zip(rows, drawn.tokens.tolist(), drawn.logprobs.tolist(), strict=True):
            row.tokens.append(token)
            row.logprob += logprob
            row.finish = self.stopper.finish(row.tokens)
            if row.finish is None and len(row.tokens) == s.max_new_tokens:
                row.finish = "length"
        return [row for row in rows if row.finish is None]

    def _finished(self, row: _Row) -> Sample:
        text = self.stopper.text(row.tokens)
        return Sample(row.index, text, len(row.tokens), row.finish or "length", row.logprob)
