"""Draws the answers of one batch of prompts: prefill once, then all rows in lockstep until each has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from kbtrain.llm.base import Sampling
from kbtrain.llm.draw import filtered, inverse_cdf, log_probability
from kbtrain.llm.shared_prefix import CopiedPrefixDecoder, SharedPrefixDecoder
from kbtrain.llm.stopping import Stopper
from kbtrain.llm.uniforms import UniformRow
from kbtrain.records import Condition, Finish, Sample

GREEDY = -1  # the sample index of the greedy answer


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

    @torch.inference_mode()
    def sample(self, prompts: Sequence[PromptRows]) -> list[list[Sample]]:
        """Samples of each prompt, in the order of its ``indices``."""
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
        cache, logits = prefill(self.model, [prompt.ids for prompt in prompts])
        first = rows[0].prompt
        prompt_of_row = [row.prompt - first for row in rows]
        tokens = self._choose(rows, logits, torch.tensor(prompt_of_row, device=logits.device))
        decoder, alive = None, rows
        for _ in range(self.sampling.max_new_tokens):
            going = [i for i, row in enumerate(alive) if row.finish is None]
            if not going:
                return
            if decoder is None:
                decoder = decoder_kind(
                    self.model, cache, [len(p.ids) for p in prompts], [prompt_of_row[i] for i in going]
                )
            elif len(going) < len(alive):
                decoder.keep(going)
            alive = [alive[i] for i in going]
            tokens = self._choose(alive, decoder.step(tokens[going]), None)

    def _choose(self, rows: list[_Row], logits: torch.Tensor, source: torch.Tensor | None) -> torch.Tensor:
        """The next token of each row; ``source`` names each row's line in ``logits`` (None: its own)."""
        step, s = len(rows[0].tokens), self.sampling
        scores = filtered(logits, s.temperature, s.top_k, s.top_p)
        uniforms = torch.tensor([row.uniforms.at(step) for row in rows], dtype=torch.float64, device=logits.device)
        chosen = inverse_cdf(scores, uniforms, source)
        greedy = [i for i, row in enumerate(rows) if row.index == GREEDY]
        if greedy:
            lines = torch.tensor(greedy, device=logits.device)
            chosen[lines] = logits[lines if source is None else source[lines]].argmax(dim=-1)
        logprobs = log_probability(scores if source is None else scores[source], chosen)
        for row, token, logprob in zip(rows, chosen.tolist(), logprobs.tolist(), strict=True):
            row.tokens.append(token)
            row.logprob += logprob
            row.finish = self.stopper.finish(row.tokens)
            if row.finish is None and len(row.tokens) == s.max_new_tokens:
                row.finish = "length"
        return chosen

    def _finished(self, row: _Row) -> Sample:
        text = self.stopper.text(row.tokens)
        return Sample(row.index, text, len(row.tokens), row.finish or "length", row.logprob)


def prefill(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> tuple[DynamicCache, torch.Tensor]:
    """Keys and values of the prompts and the logits after each one's last token, (prompts, vocabulary).

    Padding stands on the right, where a causal model's real tokens cannot see it: no mask is needed.
    """
    longest = max(len(ids) for ids in prompts)
    # any id serves as padding here, nothing that is used depends on it
    batch = torch.tensor([[*ids, *([ids[-1]] * (longest - len(ids)))] for ids in prompts], device=model.device)
    last = torch.tensor([len(ids) - 1 for ids in prompts], device=model.device)
    places, which = torch.unique(last, return_inverse=True)
    cache = DynamicCache(config=model.config)
    output = model(input_ids=batch, past_key_values=cache, use_cache=True, logits_to_keep=places)
    rows = torch.arange(len(prompts), device=model.device)
    return cache, output.logits[rows, which]
