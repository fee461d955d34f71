"""States of the answering model kept while it is sampled: its plain prompts' and its greedy answers' beginnings.

A probe reads the very passes that sampling makes anyway. Kept here, they need no second prefill and no second draft:
training and scores find them in the run folder.

States belong to the answers' transaction: those of a batch are durable before its answers are stored. An answer without
states (the folder was deleted, or an earlier run kept none) is drawn again in its own batch, which gives equal states.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kbtrain.arrays import States
from kbtrain.engine.vllm_args import engine_arguments
from kbtrain.errors import UserError
from kbtrain.gates.probe.gate import DRAFT_TOKENS, draft_facts, state_facts, state_folder
from kbtrain.gates.probe.states import StateStore, prompt_key
from kbtrain.llm.backends import open_llm
from kbtrain.llm.base import AnswerRequest, prompt_ids
from kbtrain.llm.sample_stage import AnswersWithFacts, Engine, answers_of
from kbtrain.llm.sampler.hidden_states import PARTS, StatesObserver
from kbtrain.llm.sampler.observer import Row
from kbtrain.models.adapters import base_fingerprint
from kbtrain.models.files_read import config_of
from kbtrain.records import GREEDY

if TYPE_CHECKING:
    from kbtrain.llm.backends import LLMConfig


def keeping_states(run: Path) -> Engine:
    """The engine of one process, which also keeps states in the run folder.

    For answers that begin as drafts do: longer ones, stopped by the same texts. Where states are missing, the back end
    transformers draws the answer again in its own batch; vllm and openai read the states of each question by a short
    request beside its answers' (:mod:`kbtrain.engine`).
    """

    def engine(
        config: LLMConfig, windows: Iterator[list[AnswerRequest]], done: Collection[tuple[str, str]]
    ) -> Iterator[AnswersWithFacts]:
        llm: Any = open_llm(with_states(config))
        stored = KeptStates.in_folder(run, config.model, llm.facts().get("dtype", config.dtype))
        complete, prompts = set(done), dict[str, list[int]]()  # of questions without states
        in_process = config.kind.passes
        if in_process:
            llm.observe(stored.observer(prompts))
        begin_states = None if in_process else served_states(llm, config)
        asked: dict[str, Callable[[], States]] = {}  # by question: what waits for its states

        def keep(questions: Sequence[str]) -> None:
            for name in filter(asked.__contains__, questions):
                stored.add(name, prompts[name], asked.pop(name)())
            stored.write(questions)
            for name in questions:
                prompts.pop(name, None)

        def watched() -> Iterator[list[AnswerRequest]]:
            for window in windows:
                prompt_by_question = {
                    request.question.id: prompt_ids(llm.tokenizer, request, llm.sampling.max_prompt_tokens)[0]
                    for request in filter(has_states, window)
                }
                lacking_states = {name: ids for name, ids in prompt_by_question.items() if stored.lacks(ids)}
                prompts.update(lacking_states)
                if begin_states is not None:  # before the window's answers, so that they are there when those are
                    begun = begin_states([*lacking_states.values()])
                    asked.update(zip(lacking_states, begun, strict=True))
                lacking = [name for name in prompt_by_question if (name, "llm") in complete and name in prompts]
                if in_process:
                    complete.difference_update((name, "llm") for name in lacking)
                else:
                    keep(lacking)
                yield window

        for facts, sets in answers_of(llm, config, watched(), complete):
            keep([answer_set.question_id for answer_set in sets if answer_set.condition == "llm"])
            yield (
                facts,
                [answer_set for answer_set in sets if (answer_set.question_id, answer_set.condition) not in done],
            )

    return engine


def served_states(llm: Any, config: LLMConfig) -> Callable[[Sequence[Sequence[int]]], list[Callable[[], States]]]:
    """A function that asks vLLM, offline or as a server, for the states of all layers at prompts and their drafts, and
    gives for each prompt what waits for them."""
    from kbtrain.llm.served_states import SHORT_PROMPT, StatesServer

    layers = list(range(1, n_layers(config.model) + 1))
    if not config.kind.server:
        return lambda prompts: [
            functools.partial(_of_layers, states, layers) for states in llm.begin_states(prompts, DRAFT_TOKENS)
        ]
    server = StatesServer(llm.server, llm.tokenizer)
    try:  # before the first answer is paid for
        server.read([SHORT_PROMPT])[0].of_layers(layers, draft=False)
    except UserError as error:
        raise UserError(f"key 'keep_states': {error}".replace("FOLDER", config.model)) from None
    reader = ThreadPoolExecutor(1, "states")

    def begin(prompts: Sequence[Sequence[int]]) -> list[Callable[[], States]]:
        read = reader.submit(server.read, prompts, DRAFT_TOKENS)

        def wait(i: int) -> States:
            return _of_layers(lambda: read.result()[i], layers)

        return [functools.partial(wait, i) for i in range(len(prompts))]

    return begin


def _of_layers(wait: Callable[[], Any], layers: Sequence[int]) -> States:
    states: States = wait().of_layers(layers, draft=True)
    return states


def n_layers(model: str) -> int:
    """Number of a model's layers, by its configuration. Raises :class:`UserError`."""
    return int(config_of(model).get_text_config().num_hidden_layers)


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
    """True for the requests whose states are kept: a probe is fitted to those of training questions.

    It scores dev and test questions by passes of its own, in the number format of its use.
    """
    return request.condition == "llm" and request.question.split == "train"


def count_lacking(config: LLMConfig, dtype: str, run: Path, requests: Iterable[AnswerRequest]) -> int:
    """Number of requests whose states should be in the run folder and are not; only the tokenizer is opened.

    ``dtype``: the number format of the model that answered.
    """
    from kbtrain.models.load import load_tokenizer

    stored, tokenizer = KeptStates.in_folder(run, config.model, dtype), load_tokenizer(config.model)
    prompts = (prompt_ids(tokenizer, request, config.max_prompt_tokens)[0] for request in filter(has_states, requests))
    return sum(map(stored.lacks, prompts))


class KeptStates:
    """States by prompt in two folders, written batch by batch; threads may add to it.

    The states of a draft begin with those of its prompt (:data:`~kbtrain.llm.sampler.hidden_states.PARTS`): one row
    serves both folders.
    """

    def __init__(self, of_prompts: StateStore, of_drafts: StateStore) -> None:
        self._folders = ((of_prompts, 1), (of_drafts, PARTS))  # with how many of a row's parts each keeps
        self._drawn: dict[str, tuple[str, States]] = {}  # by question: its prompt's key, and states of both folders

    @classmethod
    def in_folder(cls, run: Path, model: str, dtype: str) -> KeptStates:
        """Those of a run folder, of a model by its name and number format.

        Raises :class:`UserError` if it holds states of another model or number format.
        """
        facts = state_facts(base_fingerprint(model), dtype, model)
        drafts = StateStore(state_folder(run, "draft"), facts | draft_facts(DRAFT_TOKENS))
        return cls(StateStore(state_folder(run, "llm"), facts), drafts)

    def lacks(self, ids: Sequence[int]) -> bool:
        """True unless both folders have the states of the prompt of these token ids."""
        key = prompt_key(ids)
        return not all(key in store for store, _ in self._folders)

    def add(self, question: str, ids: Sequence[int], states: States) -> None:
        """``states`` (layers, 3 d) of a question's prompt and of its draft; written by :meth:`write`."""
        if self.lacks(ids):
            self._drawn[question] = (prompt_key(ids), states)

    def observer(self, questions: Container[str]) -> StatesObserver:
        """Adds what the passes show of the greedy answer to each of ``questions`` without retrieval."""

        def reads(row: Row) -> bool:
            prompt = row.prompt
            return row.index == GREEDY and prompt.condition == "llm" and prompt.question_id in questions

        def add(row: Row, states: States) -> None:
            self.add(row.prompt.question_id, row.prompt.ids, states)

        return StatesObserver(DRAFT_TOKENS, None, add, reads)

    def write(self, questions: Sequence[str]) -> None:
        """Write the states of these questions, durable when this returns.

        In the order of the questions: of two that share a prompt the first one's states are kept in every run.
        """
        rows: dict[str, States] = {}
        for question in questions:
            if question in self._drawn:
                rows.setdefault(*self._drawn.pop(question))
        for store, parts in self._folders:
            fresh = {key: row[..., : parts * row.shape[-1] // PARTS] for key, row in rows.items() if key not in store}
            if fresh:
                store.add([*fresh], np.stack([*fresh.values()]))
