"""Probabilities of examples: encode, sort into batches of like length, one forward pass each, sum over the branches.

The constant beginning of all prompts (system turn, instruction, demonstrations) is computed once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from kbtrain.gates.true_false.template import Encoded, Encoder, Values
from kbtrain.models.batching import common_start, like_length
from kbtrain.models.weights import no_scores
from kbtrain.records import GateExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from kbtrain.llm.sampler.prefill import SharedPrefixCache

TOKENS_PER_BATCH = 4096  # rows x (longest prompt + tree): bounds memory, and is enough to keep matrix products fast


class Scorer:
    """p(True) of each key of a form, by a causal language model. ``spent`` counts ``prompt_tokens``."""

    def __init__(self, model: PreTrainedModel, encoder: Encoder) -> None:
        from kbtrain.gates.true_false.forward import check_model
        from kbtrain.kernels.memory import FreedMemory, keep_freed_memory

        check_model(model)
        if model.device.type == "cpu":
            keep_freed_memory()
        self._freed: FreedMemory | None = FreedMemory() if model.device.type == "cpu" else None
        self._most = 0  # tokens of the largest batch that was found to have room
        self.model = model
        self.encoder = encoder
        self._forget()
        self.tokens_per_batch = TOKENS_PER_BATCH
        self.spent: Counter[str] = Counter()

    def probabilities(self, examples: Sequence[GateExample]) -> dict[str, list[float]]:
        """p(True) of each key, in the order of the examples. Raises :class:`UserError` if one is not a number."""
        rows = [self.encoder.encode(example) for example in examples]
        self.spent["prompt_tokens"] += sum(len(row.prompt) for row in rows)
        keys = self.encoder.template.keys
        by_key: dict[str, list[float]] = {key: [math.nan] * len(rows) for key in keys}
        was_training = self.model.training
        self.model.train(False)
        if was_training:
            self._forget()
        with self._packed:
            prefix = None if was_training else self._start.cache_for([row.prompt for row in rows])
            batches = like_lengths(rows, self.tokens_per_batch)
            self._warn_if_short([[rows[i] for i in batch] for batch in batches])
            for batch in batches:
                for i, values in zip(batch, self._batch([rows[i] for i in batch], prefix), strict=True):
                    for key, p in zip(keys, marginals(values, len(keys)), strict=True):
                        by_key[key][i] = p
                if self._freed is not None:
                    self._freed.check()
        self.model.train(was_training)
        if was_training:  # what an optimizer writes to weights need not be counted: nothing of now may serve later
            self._forget()
        bad = [examples[i].id for i in range(len(rows)) if any(math.isnan(by_key[key][i]) for key in keys)]
        if bad:
            raise no_scores(self.model, bad)
        return by_key

    def _forget(self) -> None:
        """Drop what was computed from the weights: their packed form, and the prompts' beginning."""
        from kbtrain.kernels.packed_linear import PackedLinears

        self._packed = PackedLinears(self.model)
        self._start = PrefixCache(self.model, self.encoder)

    def n_batches(self, examples: Sequence[GateExample]) -> int:
        """Number of forward passes for these examples (more where memory runs out)."""
        return len(like_lengths([self.encoder.encode(e) for e in examples], self.tokens_per_batch))

    def _warn_if_short(self, batches: Sequence[Sequence[Encoded]]) -> None:
        """Say before the first pass if a batch, larger than any before, may take more memory than there is."""
        if self._freed is None:
            return
        largest = max(
            (len(rows) * max(len(r.prompt) + len(r.tree.tokens) for r in rows) for rows in batches), default=0
        )
        if largest > self._most:
            from kbtrain.kernels.memory import warn_if_short
            from kbtrain.llm.transformers_llm import pass_bytes

            self._most = largest
            warn_if_short(pass_bytes(self.model, largest), "a batch of these questions", "shorter references take less")

    def _batch(self, rows: list[Encoded], prefix: SharedPrefixCache | None) -> list[dict[Values, float]]:
        """One forward pass; when memory runs out, two of half the rows."""
        from kbtrain.gates.true_false.forward import value_probabilities
        from kbtrain.llm.transformers_llm import is_memory_error

        tokenizer = self.encoder.tokenizer
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        try:
            return value_probabilities(self.model, rows, pad, prefix)
        except (MemoryError, RuntimeError) as error:
            if not is_memory_error(error) or len(rows) == 1:
                raise
        half = len(rows) // 2
        return self._batch(rows[:half], prefix) + self._batch(rows[half:], prefix)


def marginals(conditional: Mapping[Values, float], n_keys: int) -> list[float]:
    """p(True) of each key, summed over the earlier keys' values, from p(True | earlier values)."""
    reached: dict[Values, float] = {(): 1.0}
    totals = []
    for _ in range(n_keys):
        totals.append(math.fsum(p * conditional[values] for values, p in reached.items()))
        reached = {
            (*values, value): p * (conditional[values] if value else 1 - conditional[values])
            for values, p in reached.items()
            for value in (True, False)
        }
    return totals


def like_lengths(rows: Sequence[Encoded], tokens_per_batch: int) -> list[list[int]]:
    """Indices in batches of like length, longest first; rows of a batch share their answers' tokens."""
    lengths = [len(row.prompt) + len(row.tree.tokens) for row in rows]
    return like_length(lengths, tokens_per_batch, [row.tree for row in rows])


_PROBES = (GateExample("1", "1", "test", "Who?", "en", None), GateExample("2", "2", "test", "an", "en", "It is."))


class PrefixCache:
    """A function of model and form alone, so that a score does not depend on which others it is computed with."""

    def __init__(self, model: PreTrainedModel, encoder: Encoder) -> None:
        self.model = model
        self.encoder = encoder
        self._cache: SharedPrefixCache | None = None

    def cache_for(self, prompts: Sequence[Sequence[int]]) -> SharedPrefixCache | None:
        """Cache of the prefix, recomputed after a change of weights; None if too short or a prompt begins otherwise."""
        from kbtrain.llm.sampler.prefill import current_prefix

        self._cache = current_prefix(self._cache, self.model, self._ids)
        return self._cache if self._cache and self._cache.fits(prompts) else None

    @cached_property
    def _ids(self) -> tuple[int, ...]:
        from kbtrain.llm.sampler.prefill import keeps_all

        if not keeps_all(self.model):
            return ()
        return common_start([self.encoder.encode(probe).prompt for probe in _PROBES])
