"""SeaKR's engine: the greedy answer to a prompt, its uncertainty, and the cost of both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field

from kbtrain.errors import UserError
from kbtrain.gates.seakr import signals
from kbtrain.llm.base import Sampling
from kbtrain.records import GREEDY, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from kbtrain.llm.sampler.observer import PromptRows
    from kbtrain.llm.sampler.sampler import BatchSampler
    from kbtrain.llm.sampler.state_sampler import AnswerWithStates
    from kbtrain.models.batching import BatchLimits


class SeakrSettings(BaseModel):
    """Settings of the uncertainty. Defaults are the paper's; ``layer`` None: the middle one; ``mlp`` None: found."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    signal: str = "seakr"  # the one that decides, see signals.SIGNALS
    k: int = Field(default=20, ge=2)
    alpha: float = Field(default=signals.ALPHA, gt=0)
    layer: int | None = None
    mlp: str | None = None
    temperature: float = Field(default=1.0, gt=0)
    top_k: int = Field(default=50, ge=0)
    top_p: float = Field(default=0.9, gt=0, le=1)
    max_new_tokens: int = Field(default=24, ge=1, lt=2**31)
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ("\n",)
    max_prompt_tokens: int = Field(default=2048, ge=16)
    seed: str = "seakr"

    def sampling(self) -> Sampling:
        shared = ("seed", "temperature", "top_k", "top_p", "max_new_tokens", "stop", "max_prompt_tokens")
        return Sampling(**{name: getattr(self, name) for name in shared})


@dataclass(frozen=True)
class Thought:
    """A prompt's greedy answer and its uncertainty. ``pieces`` are its tokens' texts and probabilities.

    ``generated_tokens`` counts the greedy answer and all
    ``n_samples``; ``n_empty`` of the samples say nothing. Of a text that was only completed there are no samples, no
    signals and no uncertainty (nan).
    """

    id: str
    text: str
    uncertainty: float
    signals: dict[str, float]
    pieces: tuple[tuple[str, float], ...]
    n_samples: int
    n_empty: int
    prompt_tokens: int
    generated_tokens: int


class Uncertainty:
    """Answers with their uncertainty from one model, many prompts at a time; states are read at ``settings.layer``,
    ``mlp``."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: SeakrSettings,
        limits: BatchLimits | None = None,
    ) -> None:
        from kbtrain.llm.sampler.hidden_states import StateTap
        from kbtrain.llm.sampler.state_sampler import StateSampler
        from kbtrain.models.batching import BatchLimits

        if settings.signal not in signals.SIGNALS:
            raise UserError(f"key 'signal': unknown '{settings.signal}'; valid: {', '.join(signals.SIGNALS)}")
        tap = StateTap(model, settings.layer, settings.mlp)
        self.settings = settings.model_copy(update={"layer": tap.layer, "mlp": tap.mlp})
        self.model = model
        self.tokenizer = tokenizer
        self.limits = limits or BatchLimits()
        sampling = self.settings.sampling()
        self._completer: BatchSampler | None = None
        self._sampler = StateSampler(model, tokenizer, sampling, tap)
        self._stopper = self._sampler.stopper

    def set_prefix(self, ids: Sequence[int]) -> None:
        """Tokens with which prompts to come begin: they are read once, and not again for each prompt.

        Of a model with a sliding window they are read with each prompt that exceeds it.
        """
        from kbtrain.llm.sampler.prefill import SharedPrefixCache, keeps_all

        held = ids and (self._sampler.shared or keeps_all(self.model))
        self._sampler.prefix = SharedPrefixCache(self.model, ids, self._sampler.blocks) if held else None

    def think(
        self, prompts: Sequence[tuple[str, Sequence[int]]], first: Callable[[str], str] | None = None
    ) -> list[Thought]:
        """One thought for each (id, token ids), in their order; an id names the random numbers of its samples.

        ``first`` gives the part of a text that counts (None: all of it): answers end behind it, and the uncertainty is
        that of what is kept. Raises :class:`UserError` for a prompt that is too long, or whose states are not numbers.
        """
        from kbtrain.llm.sampler.observer import PromptRows

        indices = (GREEDY, *range(self.settings.k))
        rows = [PromptRows(name, "llm", tuple(ids), indices) for name, ids in prompts]
        for row in rows:
            if len(row.ids) > self.settings.max_prompt_tokens:
                room = self.settings.max_prompt_tokens
                raise UserError(f"'{row.question_id}': prompt of {len(row.ids)} tokens; room for {room}")
        self._sampler.stopper = self._stopper if first is None else self._stopper.cut_at(first)
        return self._in_order(rows, lambda batch: map(self._thought, batch, self._closed_answers(batch)))

    def complete(self, prompts: Sequence[tuple[str, Sequence[int]]], tokens: int, stop: Sequence[str]) -> list[Thought]:
        """The greedy texts, of at most ``tokens`` tokens, without samples. Raises as :meth:`think`."""
        from kbtrain.llm.sampler.observer import PromptRows
        from kbtrain.llm.sampler.sampler import BatchSampler

        rows = [PromptRows(name, "llm", tuple(ids), (GREEDY,)) for name, ids in prompts]
        sampling = replace(self.settings.sampling(), max_new_tokens=tokens, stop=tuple(stop))
        if self._completer is None or self._completer.sampling != sampling:
            self._completer = BatchSampler(self.model, self.tokenizer, sampling)
        completer = self._completer
        return self._in_order(rows, lambda batch: map(_completed, batch, completer.sample(batch)))

    def _in_order(
        self, rows: list[PromptRows], think: Callable[[list[PromptRows]], Iterable[Thought]]
    ) -> list[Thought]:
        """One thought for each row, from batches of like length."""
        from kbtrain.models.batching import batches

        in_batches = batches(rows, self.limits)
        thoughts = {id(row): thought for batch in in_batches for row, thought in zip(batch, think(batch), strict=True)}
        return [thoughts[id(row)] for row in rows]

    def _closed_answers(self, batch: list[PromptRows]) -> Iterator[list[AnswerWithStates]]:
        """Closed answers of a batch; when memory runs out, of its halves."""
        from kbtrain.models.batching import is_memory_error

        try:
            yield from self._sampler.sample_with_states(batch)
            return
        except (MemoryError, RuntimeError) as error:
            if not is_memory_error(error):
                raise
            if len(batch) == 1:
                raise UserError(f"'{batch[0].question_id}': not enough memory for {self.settings.k} samples") from None
        half = len(batch) // 2
        yield from self._closed_answers(batch[:half])
        yield from self._closed_answers(batch[half:])

    def _thought(self, row: PromptRows, answers: list[AnswerWithStates]) -> Thought:
        greedy, samples = answers[0], answers[1:]
        speaking_samples = signals.nonempty_answers(samples)
        try:
            measured = signals.measure(samples, self.settings.alpha)
        except UserError as error:
            raise UserError(f"'{row.question_id}': {error}") from None
        return Thought(
            id=row.question_id, text=greedy.sample.text.strip(), uncertainty=measured[self.settings.signal],
            signals=measured, pieces=greedy.pieces, n_samples=len(samples),
            n_empty=len(samples) - len(speaking_samples), prompt_tokens=len(row.ids),
            generated_tokens=sum(answer.sample.n_tokens for answer in answers),
        )  # fmt: skip


def _completed(row: PromptRows, samples: Sequence[Sample]) -> Thought:
    (sample,) = samples
    return Thought(row.question_id, sample.text.strip(), math.nan, {}, (), 0, 0, len(row.ids), sample.n_tokens)
