"""States of the answering model kept while it is sampled: its plain prompts' and its greedy answers' beginnings.

A probe reads the very passes that sampling makes anyway. Kept here, they need no second prefill and no second draft:
training and scores find them in the run folder. What is missing there is read later, by whoever needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from kbtrain.gates.probe.draft_states import PARTS, DraftStateSampler, StatesRow
from kbtrain.gates.probe.gate import DRAFT_TOKENS, draft_facts, state_facts, state_folder
from kbtrain.gates.probe.states import PER_FILE, StateStore, prompt_key
from kbtrain.llm.backends import open_llm
from kbtrain.llm.base import AnswerRequest
from kbtrain.llm.sample_stage import Answered, Engine, answered_by
from kbtrain.llm.sampler.sampler import BatchSampler, PromptRows, Row
from kbtrain.llm.sampler.shared_prefix import CopiedPrefixDecoder, SharedPrefixDecoder
from kbtrain.llm.transformers_llm import TransformersLLM
from kbtrain.models.adapters import base_fingerprint
from kbtrain.models.load import name_of
from kbtrain.records import GREEDY

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import DynamicCache

    from kbtrain.llm.backends import LLMConfig

    States = NDArray[np.float32]


def keeping_states(run: Path) -> Engine:
    """The engine of one process, which also keeps states in the run folder.

    For the transformers back end, and answers that begin as drafts do: longer ones, stopped by the same texts. Test
    questions' are not kept: a gate scores these by passes of its own, whose time is what a decision costs.
    """

    def engine(
        config: LLMConfig, windows: Iterator[list[AnswerRequest]], done: Collection[tuple[str, str]]
    ) -> Iterator[Answered]:
        llm = cast(TransformersLLM, open_llm(config))
        kept, learnt_from = KeptStates.of(llm, run), set[str]()
        llm.draw_with(KeepingSampler(llm, learnt_from, kept.add))

        def noted() -> Iterator[list[AnswerRequest]]:
            for window in windows:
                learnt_from.update(one.question.id for one in window if one.question.split != "test")
                yield window

        try:
            yield from answered_by(llm, config, noted(), done)
        finally:
            kept.write()

    return engine


class KeptStates:
    """Writes states by prompt, :data:`~kbtrain.gates.probe.states.PER_FILE` prompts at a time; threads may share it.

    The states of a draft begin with those of its prompt (:data:`~kbtrain.gates.probe.draft_states.PARTS`): one row
    serves both folders. A killed run loses the states of fewer prompts than one file has, which are read again when
    a probe needs them.
    """

    def __init__(self, of_prompts: StateStore, of_drafts: StateStore) -> None:
        self._of_prompts = of_prompts
        self._of_drafts = of_drafts
        self._waiting: dict[str, States] = {}
        self._lock = Lock()

    @classmethod
    def of(cls, llm: TransformersLLM, run: Path) -> KeptStates:
        """Those of a run folder. Raises :class:`UserError` if it holds states of another model or number format."""
        facts = state_facts(base_fingerprint(llm.name), name_of(llm.model.dtype), llm.name)
        drafts = StateStore(state_folder(run, "draft"), facts | draft_facts(DRAFT_TOKENS))
        return cls(StateStore(state_folder(run, "llm"), facts), drafts)

    def add(self, ids: Sequence[int], states: States) -> None:
        """``states`` (layers, 3 d) of the prompt of these token ids and of its draft."""
        key = prompt_key(ids)
        with self._lock:
            if key not in self._of_prompts or key not in self._of_drafts:
                self._waiting[key] = states
            if len(self._waiting) >= PER_FILE:
                self._write()

    def write(self) -> None:
        """Write what is not written yet."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        for store, part in ((self._of_prompts, 1), (self._of_drafts, PARTS)):
            keys = [key for key in self._waiting if key not in store]
            if keys:
                whole = np.stack([self._waiting[key] for key in keys])
                store.add(keys, whole[..., : part * whole.shape[-1] // PARTS])
        self._waiting.clear()


@dataclass
class KeptRow(StatesRow):
    """One answer while it is drawn; ``ids``: its prompt's token ids if its states are kept, else none."""

    ids: tuple[int, ...] = ()


class KeepingSampler(DraftStateSampler):
    """Draws as :class:`~kbtrain.llm.sampler.sampler.BatchSampler` does; ``keep(ids, states)`` gets the states of the
    greedy answer to each of ``questions`` (ids) asked without retrieval.
    """

    row_type = KeptRow
    tail_tokens = 0  # answers are longer than drafts: whatever is read is fed anyway

    def __init__(
        self, llm: TransformersLLM, questions: Collection[str], keep: Callable[[Sequence[int], States], None]
    ) -> None:
        super().__init__(llm.model, llm.tokenizer, llm.sampling, DRAFT_TOKENS, None, llm.shared_prefix, llm.window)
        self.questions = questions
        self.keep = keep
        self._kept: list[KeptRow] = []

    def _decode(self, prompts: Sequence[PromptRows], rows: list[Row]) -> None:
        self._kept = []
        for row in cast("list[KeptRow]", rows):
            prompt = prompts[row.sequence]
            if row.index == GREEDY and prompt.condition == "llm" and prompt.question_id in self.questions:
                row.ids = prompt.ids
                self._kept.append(row)
        super()._decode(prompts, rows)

    def _prefill(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[DynamicCache, torch.Tensor]:
        return super()._prefill(prompts, room) if self._kept else BatchSampler._prefill(self, prompts, room)

    def wanted(self, rows: list[Row]) -> list[Row]:
        """All of them."""
        super().wanted(cast("list[Row]", self._kept))
        return rows

    def _step(self, decoder: SharedPrefixDecoder | CopiedPrefixDecoder, newest: torch.Tensor) -> torch.Tensor:
        drafting = any(row.feed and row.fed < self.tokens for row in self._kept)
        return super()._step(decoder, newest) if drafting else BatchSampler._step(self, decoder, newest)

    def after_step(self, rows: Sequence[Row]) -> None:
        """Note the states of drafts that are kept."""
        super().after_step([row for row in rows if cast(KeptRow, row).ids])

    def tail(self, row: Row) -> list[int]:
        """Nothing."""
        return []

    def drafted(self, row: StatesRow) -> None:
        """Hand on the states of an answer that is done."""
        if ids := cast(KeptRow, row).ids:
            self.keep(ids, row.states())
