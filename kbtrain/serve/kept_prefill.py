"""The passes of a gate's decision, kept for the answer that follows it.

A probe reads the answering model's states under the prompt of the plain answer, a draft probe and the gate ``draft``
those or the logits of the answer's first tokens, too. Where the model in this process is that very model, and requests
are asked with the prompt that the gate was made with, these passes are the ones that the answer begins with: a question
that is not searched for goes through the model once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from kbtrain.gate_folder import Gate
from kbtrain.gates.probe.draft_states import DraftStateSampler
from kbtrain.gates.probe.gate import DraftReader, Probe, Reader, batches_alike
from kbtrain.gates.probe.states import as_array, last_states
from kbtrain.gates.stack.gate import Stack
from kbtrain.gates.untrained.draft import Draft
from kbtrain.llm.base import Sampling
from kbtrain.llm.sampler.draft_sampler import Draft as Drafted
from kbtrain.llm.sampler.draft_sampler import DraftRow, DraftSampler
from kbtrain.llm.sampler.sampler import AnswerT, BatchSampler, LockstepSampler, PromptRows, Row, RowT
from kbtrain.llm.sampler.shared_prefix import CopiedPrefixDecoder, SharedPrefixDecoder
from kbtrain.models.adapters import base_fingerprint
from kbtrain.models.load import name_of
from kbtrain.records import GateExample, Sample
from kbtrain.serve.kept_passes import MOST, KeptPrefills, NotingModel, Passes, can_keep

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import DynamicCache, PreTrainedModel


class KeepingReader(Reader):
    """Reads states of a few prompts from prefills that are kept; those of many from a pass over batches of them.

    Each prompt goes alone, as the model in this process answers: the answer is the same token for token.
    """

    def __init__(self, reader: Reader, sampler: BatchSampler, kept: KeptPrefills) -> None:
        super().__init__(sampler.model, sampler.tokenizer, reader.condition, reader.own)
        self._sampler, self._kept = sampler, kept

    def states(self, examples: Sequence[GateExample], layers: Sequence[int]) -> NDArray[np.float32]:
        """As in the base class."""
        if len(examples) > MOST:
            return super().states(examples, layers)
        found = []
        for ids in self.prompts(examples):
            with last_states(self.model, layers, [len(ids) - 1]) as read:
                cache, logits = self._sampler.prefilled(ids)
            self._kept.keep(ids, Passes(cache, [logits]))
            found.append(as_array(self.model, read))
        return np.concatenate(found)


class _Keeping(LockstepSampler[RowT, AnswerT]):
    """Draws drafts of a few prompts one by one, as the model in this process answers, and keeps their passes; those of
    many in batches.
    """

    _kept: KeptPrefills
    _passes: Passes | None = None  # of the draft under way; None: none are kept

    def beside(self, sampler: BatchSampler, kept: KeptPrefills) -> None:
        """Compute as ``sampler`` does, with its packed weights, for what keeps the passes."""
        self._packed, self._kept = sampler._packed, kept

    def sample(self, prompts: Sequence[PromptRows]) -> list[list[AnswerT]]:
        """As in the base class."""
        if len(prompts) > MOST:
            return super().sample(prompts)
        return [self._alone(prompt) for prompt in prompts]

    def _alone(self, prompt: PromptRows) -> list[AnswerT]:
        self._passes = Passes(cast(Any, None), [])  # the prefill fills it
        try:
            (answers,) = super().sample([prompt])
            self._kept.keep(prompt.ids, self._passes)
        finally:
            self._passes = None
        return answers

    def _prefill(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[DynamicCache, torch.Tensor]:
        if self._passes is None:
            return super()._prefill(prompts, room)
        cache, logits = super()._prefill(prompts, 0)  # no room behind it: an answer's is another than a draft's
        self._passes = Passes.of_prompt(cache, logits)
        return cache, logits

    def _step(self, decoder: SharedPrefixDecoder | CopiedPrefixDecoder, newest: torch.Tensor) -> torch.Tensor:
        if self._passes is not None:
            decoder.model = cast("PreTrainedModel", NotingModel(self.model, self._passes))
        return super()._step(decoder, newest)


class _KeepingStateDrafts(_Keeping[Row, Sample], DraftStateSampler):
    """Of a draft probe."""


class _KeepingDrafts(_Keeping[DraftRow, Drafted], DraftSampler):
    """Of the gate ``draft``."""


def _readers(gate: Gate, model: str) -> Iterator[Probe | Draft]:
    """The gate, or the members of a stack, that read the plain answers' own passes through that model."""
    if isinstance(gate, Stack):
        for member in gate.gates:
            yield from _readers(member, model)
    elif isinstance(gate, Probe):
        card = gate.card
        own = card is not None and not card.answered_by and gate.reader.condition != "rag"
        if card is not None and own and base_fingerprint(model) == card.base_fingerprint:
            yield gate
    elif isinstance(gate, Draft) and base_fingerprint(model) == base_fingerprint(gate.card.base_model):
        yield gate


def _model_of(gate: Probe | Draft) -> PreTrainedModel:
    return gate.model if isinstance(gate, Draft) else gate.reader.model


def _drafts(gate: Probe | Draft) -> bool:
    return isinstance(gate, Draft) or isinstance(gate.reader, DraftReader)


def dtype_for(gate: Gate, model: str) -> str:
    """The number format in which the model shares passes with the gate; auto for a gate that reads anything else."""
    return next((name_of(_model_of(reads).dtype) for reads in _readers(gate, model)), "auto")


def keep_prefills(gate: Gate, model: str, sampler: BatchSampler, used: Callable[[], None]) -> KeptPrefills | None:
    """Let the gate read from passes that the model's sampler answers from; None for a gate that reads anything else.

    The gate's own copy of the weights is given up for the model's.
    """
    answers = sampler.model
    fit = [
        reads
        for reads in _readers(gate, model)
        if (_model_of(reads).dtype, _model_of(reads).device) == (answers.dtype, answers.device)
        # in 16 bits an answer's passes round otherwise than those that a probe's threshold was chosen by
        and (isinstance(reads, Draft) or batches_alike(answers))
        and (can_keep(answers) or not _drafts(reads))
    ]
    if not fit:
        return None
    kept, beside = KeptPrefills(used), sampler.replica()
    for reads in fit:
        _read_beside(reads, beside, kept)
    return kept


def _read_beside(gate: Probe | Draft, beside: BatchSampler, kept: KeptPrefills) -> None:
    """Let one gate read the passes of a sampler, and keep them."""
    if isinstance(gate, Draft):

        def drafts(tokens: int) -> DraftSampler:
            made = _KeepingDrafts(
                beside.model, beside.tokenizer, Sampling(max_new_tokens=tokens), beside.shared, beside.window
            )
            made.beside(beside, kept)
            return made

        gate.draft_with(beside.model, drafts)
    elif isinstance(gate.reader, DraftReader):
        tokens = gate.reader.tokens
        sampling = Sampling(max_new_tokens=tokens)
        shared, window = beside.shared, beside.window
        made = _KeepingStateDrafts(beside.model, beside.tokenizer, sampling, tokens, None, shared, window)
        made.beside(beside, kept)
        gate.reader.draft_with(made)
    else:
        gate.reader = KeepingReader(gate.reader, beside, kept)
