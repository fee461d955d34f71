"""Draws the answers of one batch of prompts: prefill once, then all rows in lockstep until each has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer

from kbtrain.llm.base import Sampling
from kbtrain.llm.causal_blocks import causal_blocks, pays
from kbtrain.llm.decoders import CopiedPrefixDecoder, SharedPrefixDecoder
from kbtrain.llm.draw import draw, filtered
from kbtrain.llm.freed_memory import keep_freed_memory
from kbtrain.llm.packed_linear import PackedLinears
from kbtrain.llm.stopping import Stopper
from kbtrain.llm.uniforms import UniformRow
from kbtrain.records import GREEDY, Condition, Finish, Sample

_ALONE = 512  # tokens of a prompt from which it goes alone: its layers' inputs then stay in the CPU's caches (measured)
_LEAVE = 0.9  # finished rows leave the batch once they are a tenth of it: leaving copies the others' keys and values


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
        keep_freed_memory()

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
        cache, logits = prefill(self.model, [prompt.ids for prompt in prompts], blocks=self.shared)
        first = rows[0].prompt
        prompt_of_row = [row.prompt - first for row in rows]
        tokens = self._choose(rows, logits, prompt_of_row)
        going = [i for i, row in enumerate(rows) if row.finish is None]
        if not going:
            return
        decoder = decoder_kind(
            self.model,
            cache,
            [len(p.ids) for p in prompts],
            [prompt_of_row[i] for i in going],
            self.sampling.max_new_tokens,
        )
        alive, tokens = [rows[i] for i in going], tokens[going]
        while True:
            tokens = self._choose(alive, decoder.step(tokens), range(len(alive)))
            going = [i for i, row in enumerate(alive) if row.finish is None]
            if not going:
                return
            if len(going) <= _LEAVE * len(alive):
                decoder.keep(going)
                alive, tokens = [alive[i] for i in going], tokens[going]

    def _choose(self, rows: list[_Row], logits: torch.Tensor, source: Sequence[int]) -> torch.Tensor:
        """The next token of each row; row i's logits are line ``source[i]``. Rows that have ended stay as they are."""
        s = self.sampling
        step = max(len(row.tokens) for row in rows)
        uniforms = torch.tensor([row.uniforms.at(step) for row in rows], dtype=torch.float64, device=logits.device)
        greedy = torch.tensor([row.index == GREEDY for row in rows], device=logits.device)
        drawn = draw(filtered(logits, s.temperature, s.top_k, s.top_p), uniforms, greedy, source)
        for row, token, logprob in zip(rows, drawn.tokens.tolist(), drawn.logprobs.tolist(), strict=True):
            if row.finish is None:
                row.tokens.append(token)
                row.logprob += logprob
                row.finish = self.stopper.finish(row.tokens)
                if row.finish is None and len(row.tokens) == s.max_new_tokens:
                    row.finish = "length"
        return drawn.tokens

    def _finished(self, row: _Row) -> Sample:
        text = self.stopper.text(row.tokens)
        return Sample(row.index, text, len(row.tokens), row.finish or "length", row.logprob)


def prefill(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], blocks: bool = False
) -> tuple[DynamicCache, torch.Tensor]:
    """Keys and values of the prompts and the logits after each one's last token, (prompts, vocabulary).

    Padding stands on the right, where a causal model's real tokens cannot see it: no mask is needed. ``blocks``: the
    model has plain full attention, which may be computed in blocks where that is faster; long prompts then go through
    the model one by one.
    """
    longest = max(len(ids) for ids in prompts)
    in_blocks = blocks and pays(model, longest)
    if in_blocks and len(prompts) > 1 and longest >= _ALONE:
        return _one_by_one(model, prompts, longest)
    # any id serves as padding here, nothing that is used depends on it
    batch = torch.tensor([[*ids, *([ids[-1]] * (longest - len(ids)))] for ids in prompts], device=model.device)
    last = torch.tensor([len(ids) - 1 for ids in prompts], device=model.device)
    places, which = torch.unique(last, return_inverse=True)
    cache = DynamicCache(config=model.config)
    with causal_blocks(model) if in_blocks else nullcontext():
        output = model(input_ids=batch, past_key_values=cache, use_cache=True, logits_to_keep=places)
    rows = torch.arange(len(prompts), device=model.device)
    return cache, output.logits[rows, which]


def _one_by_one(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], longest: int
) -> tuple[DynamicCache, torch.Tensor]:
    """Each prompt through the model alone, its keys and values written where all prompts' stand together."""
    cache = DynamicCache(config=model.config)
    layers = [_PromptLayer(len(prompts), longest) for _ in cache.layers]
    cache.layers = list(layers)
    logits = []
    with causal_blocks(model):
        for ids in prompts:
            batch = torch.tensor([list(ids)], device=model.device)
            logits.append(model(input_ids=batch, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1])
            for layer in layers:
                layer.prompt += 1
    return cache, torch.cat(logits)


class _PromptLayer(DynamicLayer):
    """Keys and values of prompts that are prefilled one after the other, zeros on the right of the shorter ones."""

    def __init__(self, n_prompts: int, longest: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shape = (n_prompts, longest)
        self.prompt = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep one whole prompt's (1, kv heads, length, size); returns them as they are."""
        if not self.is_initialized:
            self.keys, self.values = (self._room(states) for states in (key_states, value_states))
            self.is_initialized = True
        assert self.keys is not None and self.values is not None  # for the type checker
        for whole, states in ((self.keys, key_states), (self.values, value_states)):
            whole[self.prompt, :, : states.shape[2]] = states[0]
            whole[self.prompt, :, states.shape[2] :] = 0
        return key_states, value_states

    def _room(self, states: torch.Tensor) -> torch.Tensor:
        n_prompts, longest = self.shape
        return states.new_empty(n_prompts, states.shape[1], longest, states.shape[3])

    def get_seq_length(self) -> int:
        """Every prompt begins anew."""
        return 0
