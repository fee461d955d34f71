"""States of the answering model kept while it is sampled: its plain prompts' and its greedy answers' beginnings.

A probe reads the very passes that sampling makes anyway. Kept here, they need no second prefill and no second draft:
training and scores find them in the run folder.

States belong to the answers' transaction: those of a batch are durable before its answers are stored. An answer without
states (the folder was deleted, or an earlier run kept none) is drawn again in its own batch, which gives equal states.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from kbtrain.engine.vllm_args import engine_arguments
from kbtrain.gates.probe.draft_states import PARTS, DraftStateSampler, StatesRow
from kbtrain.gates.probe.gate import DRAFT_TOKENS, draft_facts, state_facts, state_folder
from kbtrain.gates.probe.states import PER_FILE, StateStore, prompt_key
from kbtrain.llm.backends import open_llm
from kbtrain.llm.base import AnswerRequest, prompt_ids
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

    For answers that begin as drafts do: longer ones, stopped by the same texts. Test questions' are not kept: a gate
    scores these by passes of its own, whose time is what a decision costs. Back ends vllm and openai read the states by
    a short request a question, beside the answers' (:mod:`kbtrain.engine`).
    """

    def engine(
        config: LLMConfig, windows: Iterator[list[AnswerRequest]], done: Collection[tuple[str, str]]
    ) -> Iterator[Answered]:
        if not config.kind.passes:
            yield from _answered_beside(run, config, windows, done)
            return
        llm = cast(TransformersLLM, open_llm(config))
        kept, questions = KeptStates.of(llm, run), set[str]()
        llm.draw_with(KeepingSampler(llm, questions, kept.add))
        complete = set(done)  # pairs with an answer, and with states where these are kept

        def watched() -> Iterator[list[AnswerRequest]]:
            for window in windows:
                for request in filter(has_states, window):
                    questions.add(request.question.id)
                    if (pair := (request.question.id, "llm")) in complete and kept.lacks(prompt_of(llm, request)):
                        complete.remove(pair)
                yield window

        for facts, sets in answered_by(llm, config, watched(), complete):
            kept.write([made.question_id for made in sets if made.condition == "llm"])
            yield facts, [made for made in sets if (made.question_id, made.condition) not in done]

    return engine


def _answered_beside(
    run: Path, config: LLMConfig, windows: Iterator[list[AnswerRequest]], done: Collection[tuple[str, str]]
) -> Iterator[Answered]:
    """Answers of vLLM, in this process or as a server, whose states are read by requests of their own."""
    from kbtrain.llm.served_states import ServedStates, StatesServer

    llm: Any = open_llm(with_states(config))
    layers = list(range(1, n_layers(config.model) + 1))
    server = StatesServer(llm.server, llm.tokenizer) if config.kind.server else None
    read: Callable[..., list[ServedStates]] = llm.read_states if server is None else server.read
    kept = KeptStates.in_folder(run, config.model, llm.facts().get("dtype", config.dtype))
    prompts: dict[str, list[int]] = {}

    def keep(questions: Sequence[str]) -> None:
        lacking = [name for name in questions if name in prompts and kept.lacks(prompts[name])]
        for name, states in zip(lacking, read([prompts[name] for name in lacking], DRAFT_TOKENS), strict=True):
            kept.add(name, prompts[name], states.of_layers(layers, draft=True))
        kept.write(lacking)

    def watched() -> Iterator[list[AnswerRequest]]:
        for window in windows:
            prompts.update((request.question.id, prompt_of(llm, request)) for request in filter(has_states, window))
            keep([request.question.id for request in window if (request.question.id, "llm") in done])
            yield window

    for facts, sets in answered_by(llm, config, watched(), done):
        keep([made.question_id for made in sets if made.condition == "llm"])
        yield facts, sets


def n_layers(model: str) -> int:
    """Number of a model's layers, by its configuration."""
    from transformers import AutoConfig

    from kbtrain.models.load import resolve

    return int(AutoConfig.from_pretrained(resolve(model)).get_text_config().num_hidden_layers)


def with_states(config: LLMConfig) -> LLMConfig:
    """The configuration of an engine that keeps the states of all layers.

    Its log-probabilities are at temperature 1: after temperature and filters vLLM (0.32) gives NaN with this method.
    """
    if config.kind.server:
        return config
    arguments = engine_arguments(range(1, n_layers(config.model) + 1))
    extra = {**arguments, "logprobs_mode": "raw_logprobs", **config.vllm_extra}
    return config.model_copy(update={"vllm_extra": extra})


def has_states(request: AnswerRequest) -> bool:
    """True for the requests whose states are kept."""
    return request.condition == "llm" and request.question.split != "test"


def prompt_of(llm: Any, request: AnswerRequest) -> list[int]:
    """Token ids of a request's prompt."""
    return prompt_ids(llm.tokenizer, request, llm.sampling.max_prompt_tokens)[0]


def count_lacking(config: LLMConfig, dtype: str, run: Path, requests: Iterable[AnswerRequest]) -> int:
    """Number of requests whose states should be in the run folder and are not; only the tokenizer is opened.

    ``dtype``: the number format of the model that answered.
    """
    from kbtrain.models.load import load_tokenizer

    kept, tokenizer = KeptStates.in_folder(run, config.model, dtype), load_tokenizer(config.model)
    prompts = (prompt_ids(tokenizer, request, config.max_prompt_tokens)[0] for request in filter(has_states, requests))
    return sum(map(kept.lacks, prompts))


class KeptStates:
    """States by prompt in two folders, written batch by batch; threads may add to it.

    The states of a draft begin with those of its prompt (:data:`~kbtrain.gates.probe.draft_states.PARTS`): one row
    serves both folders.
    """

    def __init__(self, of_prompts: StateStore, of_drafts: StateStore) -> None:
        self._folders = (JoiningStore(of_prompts, 1), JoiningStore(of_drafts, PARTS))
        self._drawn: dict[str, tuple[str, States]] = {}  # by question: its prompt's key, and states of both folders

    @classmethod
    def of(cls, llm: TransformersLLM, run: Path) -> KeptStates:
        """Those of a run folder. Raises :class:`UserError` if it holds states of another model or number format."""
        return cls.in_folder(run, llm.name, name_of(llm.model.dtype))

    @classmethod
    def in_folder(cls, run: Path, model: str, dtype: str) -> KeptStates:
        """As :meth:`of`, by the model's name and its number format."""
        facts = state_facts(base_fingerprint(model), dtype, model)
        drafts = StateStore(state_folder(run, "draft"), facts | draft_facts(DRAFT_TOKENS))
        return cls(StateStore(state_folder(run, "llm"), facts), drafts)

    def lacks(self, ids: Sequence[int]) -> bool:
        """True unless both folders have the states of the prompt of these token ids."""
        key = prompt_key(ids)
        return not all(key in folder.store for folder in self._folders)

    def add(self, question: str, ids: Sequence[int], states: States) -> None:
        """``states`` (layers, 3 d) of a question's prompt and of its draft; written by :meth:`write`."""
        if self.lacks(ids):
            self._drawn[question] = (prompt_key(ids), states)

    def write(self, questions: Sequence[str]) -> None:
        """Write the states of these questions, durable when this returns.

        In the order of the questions: of two that share a prompt the first one's states are kept in every run.
        """
        rows: dict[str, States] = {}
        for question in questions:
            if question in self._drawn:
                rows.setdefault(*self._drawn.pop(question))
        for folder in self._folders:
            folder.add(rows)


class JoiningStore:
    """A folder of states that gets a small file a batch, and one file in their place once they hold as many prompts as
    :data:`~kbtrain.gates.probe.states.PER_FILE`.

    ``part``: how many of a row's :data:`~kbtrain.gates.probe.draft_states.PARTS` the folder keeps. A process joins its
    own files only: shards of a run share the folder.
    """

    def __init__(self, store: StateStore, part: int) -> None:
        self.store = store
        self._part = part
        self._small: list[Path] = []
        self._rows: dict[str, States] = {}  # of the small files

    def add(self, rows: Mapping[str, States]) -> None:
        """Write the rows whose keys are not in the folder."""
        fresh = {key: row[..., : self._part * row.shape[-1] // PARTS] for key, row in rows.items()
                 if key not in self.store}  # fmt: skip
        if not fresh:
            return
        self._small.append(self.store.add([*fresh], np.stack([*fresh.values()]), sampled=True))
        self._rows |= fresh
        if len(self._rows) < PER_FILE:
            return
        if len(self._small) > 1:
            joined = self.store.add([*self._rows], np.stack([*self._rows.values()]), sampled=True)
            for path in self._small:
                if path != joined:
                    path.unlink(missing_ok=True)
        self._small, self._rows = [], {}


@dataclass
class KeptRow(StatesRow):
    """One answer while it is drawn; ``ids``: its prompt's token ids if its states are kept, else none."""

    ids: tuple[int, ...] = ()


class KeepingSampler(DraftStateSampler):
    """Draws as :class:`~kbtrain.llm.sampler.sampler.BatchSampler` does.

    ``keep(question, ids, states)`` gets the states of the greedy answer to each of ``questions`` (ids) without
    retrieval; ``ids``: token ids of its prompt.
    """

    row_type = KeptRow
    tail_tokens = 0  # answers are longer than drafts: whatever is read is fed anyway

    def __init__(
        self, llm: TransformersLLM, questions: Collection[str], keep: Callable[[str, Sequence[int], States], None]
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
            self.keep(row.question_id, ids, row.states())
