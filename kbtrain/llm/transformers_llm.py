"""The transformers back end: any causal language model, answers drawn with the shared-prefix sampler.

On a CPU two batches are drawn in parallel: two cores finish them sooner than one after the other, since neither waits
for the other after each of a layer's many small operations, nor for Python between them.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kbtrain.errors import UserError
from kbtrain.kernels.memory import FreedMemory, machine_memory
from kbtrain.llm.base import AnswerRequest, Sampling, prompt_ids
from kbtrain.llm.sampler.observer import Observer, PromptRows
from kbtrain.llm.sampler.sampler import BatchSampler
from kbtrain.models.batching import BatchLimits, batches, is_memory_error, windows
from kbtrain.models.load import load_model, name_of
from kbtrain.prompts.kbm import answer_fingerprint
from kbtrain.records import GREEDY, Sample, SampleSet

T = TypeVar("T")
R = TypeVar("R")

_SHARE = 0.1  # of the machine's memory that one batch's prompts may take if another is to be computed beside it


@dataclasses.dataclass(frozen=True)
class _Batch:
    """Prompts that are drawn together, which of them (question, condition) are wanted, and evidence tokens cut."""

    prompts: list[PromptRows]
    missing: AbstractSet[tuple[str, str]]
    cut: Mapping[tuple[str, str], int]


class TransformersLLM:
    """Implements :class:`~kbtrain.llm.base.LLM`. ``shared_prefix`` is True if the fast path holds for this model, with
    a sliding ``window`` for prompts that fit into it."""

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        sampling: Sampling,
        limits: BatchLimits | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.limits = limits or BatchLimits()
        self._sampler = BatchSampler(model, tokenizer, sampling)
        self.shared_prefix = self._sampler.shared
        self._replicas: list[BatchSampler] = []

    @classmethod
    def load(
        cls, name: str, sampling: Sampling, dtype: str = "auto", device: str = "auto", limits: BatchLimits | None = None
    ) -> TransformersLLM:
        """Open a model by embedded name, folder or hub id."""
        model, tokenizer = load_model(name, dtype, device)
        return cls(name, model, tokenizer, sampling, limits)

    def facts(self) -> dict[str, Any]:
        return {
            "dtype": name_of(self.model.dtype),
            "device": self.model.device.type,
            "prompts": answer_fingerprint(self.tokenizer),
            "shared_prefix": self.shared_prefix,
        }

    def answer(
        self, requests: Iterable[AnswerRequest], done: Collection[tuple[str, str]] = frozenset()
    ) -> Iterator[list[SampleSet]]:
        """Answer a stream of requests, one list a batch. Of ``done`` a batch that is wholly done is skipped, one that
        is partly done is computed whole and its missing part returned, so the bytes are those of one run."""
        works = [functools.partial(self._answers, sampler) for sampler in self._ready_samplers()]
        freed = FreedMemory(long_batches=True)
        for answers in parallel_batches(works, self._batches(requests, done)):
            yield answers
            freed.check()

    def observe(self, observer: Observer) -> None:
        """Let an observer read all passes from now on."""
        self._sampler, self._replicas = self._sampler.observed(observer), []

    def _ready_samplers(self) -> list[BatchSampler]:
        """As many as work at once: one, where the prompts of two batches would take much of the machine's memory."""
        room = self.limits.prompt_tokens * _token_bytes(self.model)
        n_replicas = n_parallel(self.model) - 1 if room <= _SHARE * machine_memory() else 0
        while len(self._replicas) < n_replicas:
            self._replicas.append(self._sampler.replica())
        return [self._sampler, *self._replicas[:n_replicas]]

    def _batches(self, requests: Iterable[AnswerRequest], done: Collection[tuple[str, str]]) -> Iterator[_Batch]:
        """Every batch of which something is missing."""
        for window in windows(requests, self.limits.window):
            prompts, cuts = zip(*(self._prompt(request) for request in window), strict=True)
            cut = {(p.question_id, p.condition): c for p, c in zip(prompts, cuts, strict=True)}
            for batch in batches(list(prompts), self.limits):
                missing = {(p.question_id, p.condition) for p in batch if (p.question_id, p.condition) not in done}
                if missing:
                    yield _Batch(batch, missing, cut)

    def _answers(self, sampler: BatchSampler, batch: _Batch) -> list[SampleSet]:
        """Answers of a batch that are still missing; the batch is drawn whole."""
        sets = []
        for prompt, samples in zip(batch.prompts, self._draw_batch(sampler, batch.prompts), strict=True):
            key = (prompt.question_id, prompt.condition)
            if key in batch.missing:
                greedy = next((s for s in samples if s.index == GREEDY), None)
                drawn = tuple(s for s in samples if s.index != GREEDY)
                sets.append(SampleSet(*key, drawn, greedy, len(prompt.ids), batch.cut[key]))
        return sets

    def _prompt(self, request: AnswerRequest) -> tuple[PromptRows, int]:
        """The rows to draw, and how many tokens of evidence were cut from the tail to fit the prompt's room."""
        ids, cut = prompt_ids(self.tokenizer, request, self.sampling.max_prompt_tokens)
        indices = (*([GREEDY] if request.greedy else []), *range(request.n))
        return PromptRows(request.question.id, request.condition, tuple(ids), indices), cut

    def _draw_batch(self, sampler: BatchSampler, batch: Sequence[PromptRows]) -> list[list[Sample]]:
        """Sample a batch; when memory runs out, in two halves, down to half of one prompt's rows."""
        try:
            return list(sampler.sample(batch))
        except (MemoryError, RuntimeError) as error:
            if not is_memory_error(error):
                raise
        warnings.warn(f"out of memory with {sum(len(p.indices) for p in batch)} answers: halving", stacklevel=2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if len(batch) > 1:
            half = len(batch) // 2
            return self._draw_batch(sampler, batch[:half]) + self._draw_batch(sampler, batch[half:])
        (prompt,) = batch
        if len(prompt.indices) == 1:
            raise UserError(f"question '{prompt.question_id}': not enough memory for one answer; shorten the prompt")
        half = len(prompt.indices) // 2
        parts = (dataclasses.replace(prompt, indices=part) for part in (prompt.indices[:half], prompt.indices[half:]))
        return [[sample for part in parts for sample in self._draw_batch(sampler, [part])[0]]]


def _token_bytes(model: PreTrainedModel) -> int:
    """Bytes of the keys and values of one token."""
    config = model.config.get_text_config()
    all_heads = getattr(config, "num_attention_heads", None) or 1
    heads = getattr(config, "num_key_value_heads", None) or all_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // all_heads
    return int(2 * config.num_hidden_layers * heads * size * model.dtype.itemsize)


_PARALLEL = 2  # on a CPU with as many cores (measured with two; more would take more memory)


def n_parallel(model: PreTrainedModel) -> int:
    """Number of batches of a model to compute in parallel: 1 without gain, where a module's forward is replaced, as
    trainers do, or where processes share the weights."""
    if model.device.type != "cpu" or torch.get_num_threads() < _PARALLEL:
        return 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return 1
    return 1 if any("forward" in module.__dict__ for module in model.modules()) else _PARALLEL


def parallel_batches(works: Sequence[Callable[[T], R]], items: Iterable[T]) -> Iterator[R]:
    """Results of ``works`` for the items, in their order. Each of ``works`` serves one item at a time, in a thread of
    its own, with its share of PyTorch's threads."""
    if len(works) == 1:
        yield from map(works[0], items)
        return
    cores = torch.get_num_threads()
    free: SimpleQueue[Callable[[T], R]] = SimpleQueue()
    for work in works:
        free.put(work)

    def run_item(item: T) -> R:
        work = free.get()
        try:
            return work(item)
        finally:
            free.put(work)

    pool = ThreadPoolExecutor(len(works), "kbtrain", torch.set_num_threads, (max(1, cores // len(works)),))
    pending: deque[Future[R]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(run_item, item))
            if len(pending) > len(works):  # one waits, so that no thread idles while a result is stored
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(cores)
