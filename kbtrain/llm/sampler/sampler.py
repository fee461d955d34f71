"""Draws the answers of one batch of prompts: prefill once, then all in lockstep until each has ended.

Answers that begin alike are computed once: rows with the same tokens so far share one line of the model's batch.

What comes next depends on the tokens alone, so such rows draw from one distribution, each with its own uniform number.
A model that knows the answer says the same thirty times; even one that does not begins in few ways.

When an answer ends: any of the model's end tokens, or a stop string in its text.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from kbtrain.kernels.memory import keep_freed_memory
from kbtrain.kernels.packed_linear import PackedLinears
from kbtrain.kernels.parallel_batches import replica
from kbtrain.llm.base import Sampling
from kbtrain.llm.sampler.draw import UniformRow, draw, filtered
from kbtrain.llm.sampler.prefill import SharedPrefixCache, common_start, prefill
from kbtrain.llm.sampler.shared_prefix import CopiedPrefixDecoder, SharedPrefixDecoder, room_behind
from kbtrain.records import GREEDY, Condition, Finish, Sample

LEAVE = 0.9  # lines that no row follows leave the batch once they are a tenth of it: leaving copies the others


class Follower(Protocol):
    """A row: its tokens so far, the newest of which was drawn from the logits of ``line``."""

    tokens: list[int]
    line: int


class Lines:
    """Which lines there are; each row knows its own. ``newest`` holds the token to feed for each line."""

    def __init__(self, rows: Sequence[Follower]) -> None:
        """From the first drawn tokens, when a row's line is still its question's prompt. Sets the rows' lines."""
        starts = list(dict.fromkeys((row.line, row.tokens[-1]) for row in rows))
        self.questions = [question for question, _ in starts]
        self.newest = [token for _, token in starts]
        self._most = len(rows)
        _follow(rows, {start: line for line, start in enumerate(starts)})

    def grow(self, rows: Sequence[Follower], decoder: SharedPrefixDecoder | CopiedPrefixDecoder) -> None:
        """Follow the tokens just drawn: the first one of a line stays in it, others go on in copies of the line."""
        steps = list(dict.fromkeys((row.line, row.tokens[-1]) for row in rows))
        place = self._places(steps, decoder)
        first = dict(reversed(steps))  # of each line, the token that stays
        line_of, copied = {}, []
        for line, token in steps:
            if first[line] == token:
                self.newest[place[line]] = token
                line_of[line, token] = place[line]
            else:
                line_of[line, token] = len(self.newest)
                self.newest.append(token)
                copied.append(place[line])
        if copied:
            decoder.branch(copied)
        _follow(rows, line_of)

    def _places(
        self, steps: Sequence[tuple[int, int]], decoder: SharedPrefixDecoder | CopiedPrefixDecoder
    ) -> dict[int, int]:
        """Where each line that goes on stands, after lines that no row follows have left if that pays or must be."""
        live = sorted({line for line, _ in steps})
        count = len(self.newest)
        if len(live) > LEAVE * count and count + len(steps) - len(live) <= self._most:
            return {line: line for line in live}
        decoder.keep(live)
        self.newest = [self.newest[line] for line in live]
        return {line: i for i, line in enumerate(live)}


def _follow(rows: Sequence[Follower], line_of: dict[tuple[int, int], int]) -> None:
    for row in rows:
        row.line = line_of[row.line, row.tokens[-1]]


class Stopper:
    """Knows all end-of-sequence ids of model and tokenizer, and the stop strings."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.stop = tuple(stop)
        self.eos = eos_ids(model, tokenizer)
        # a text can only come to hold a stop string with a token that has the string's last character
        last = {string[-1] for string in self.stop}
        size = max(model.config.get_text_config().vocab_size, len(tokenizer)) if last else 0
        pieces = (tokenizer.decode([i]) for i in range(min(size, len(tokenizer))))
        self._may_stop = [any(c in piece for c in last) for piece in pieces]

    def finish(self, tokens: Sequence[int]) -> Finish | None:
        """Why the answer ends with its newest token, or None."""
        newest = tokens[-1]
        if newest in self.eos:
            return "eos"
        if newest < len(self._may_stop) and self._may_stop[newest]:
            text = self.tokenizer.decode(list(tokens))
            if any(string in text for string in self.stop):
                return "stop"
        return None

    def text(self, tokens: Sequence[int]) -> str:
        """The answer without end tokens, special tokens and whatever follows the first stop string."""
        kept = tokens[:-1] if tokens and tokens[-1] in self.eos else tokens
        text = str(self.tokenizer.decode(list(kept), skip_special_tokens=True))
        for string in self.stop:
            text = text.split(string, 1)[0]
        return text


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All ids that end an answer: the generation config's (one or several), the model's and the tokenizer's."""
    found: set[int] = set()
    for config in (model.generation_config, model.config):
        ids = getattr(config, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or [])
    if tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    return frozenset(found)


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
        self._head: SharedPrefixCache | None = None  # the newest batch's
        keep_freed_memory()

    def replica(self) -> BatchSampler:
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
            self._head = SharedPrefixCache(self.model, head, self.shared)
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
