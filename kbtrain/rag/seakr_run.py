"""SeaKR as a whole pipeline over a run folder's questions, resumable at the next question.

Holds the settings shared by the scripts that run it, and the choice of a threshold for a loop's own prompts: U of a
sentence behind demonstrations is not U of a bare question's answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from kbtrain.config import Config, check_counts
from kbtrain.errors import UserError, at
from kbtrain.gates.handles import identity_of
from kbtrain.gates.seakr.engine import Thought, Uncertainty
from kbtrain.gates.seakr.gate import SeakrCard
from kbtrain.io import jsonl
from kbtrain.io.provenance import MODEL_FILES, Artifact, Records, check_unchanged, file_sha256, write_atomically
from kbtrain.models.files_read import hashes_of
from kbtrain.questions.checks import read_questions
from kbtrain.rag.seakr_lockstep import AnswerEngine, Begin, PromptEngine, answer_all
from kbtrain.rag.seakr_loops import PIPELINES, Method, SelfAwareSettings
from kbtrain.rag.seakr_traces import FOLDER, Trace, grades
from kbtrain.records import DtypeName, Question, Split, Titles
from kbtrain.retrieval.base import Searcher
from kbtrain.runtime.progress import progress_bar


class SeakrPipelineConfig(Config):
    """Settings that a pipeline's answers depend on; ``limit``, ``at_once`` and the batches' sizes may change."""

    run: Path = Field(Path("runs/demo"), description="run folder with questions.jsonl and passages.jsonl")
    seakr: Path | None = Field(None, description="gate folder of SeaKR; without it RUN/seakr")
    method: Method = Field("multi_hop", description="single_hop or multi_hop")
    split: Split = Field("test", description="questions to answer")
    limit: int | None = Field(
        None, ge=1, description="largest number of questions to answer; a smaller limit takes a subset of a larger one"
    )
    threshold: float | None = Field(None, description="search if U exceeds it; null: chosen on dev by ratio")
    ratio: float = Field(
        0.5, gt=0, lt=1, description="share of the dev questions whose first reasoning step is above the threshold"
    )
    threshold_questions: int = Field(40, ge=1, description="dev questions to choose the threshold on")
    documents: int = Field(3, ge=1, description="N: documents tried after each search")
    no_rerank: bool = Field(False, description="take the search's best document instead of trying each")
    no_reason: bool = Field(
        False, description="answer only from the rationales, instead of the more certain of two answers"
    )
    signal: str | None = Field(
        None, description="signal that decides instead of the gate's, see gates/seakr/signals.py"
    )
    max_steps: int = Field(7, ge=1, description="largest number of sentences in a rationale")
    max_documents: int = Field(5, ge=1, description="largest number of documents to keep")
    word_confidence: float = Field(
        0.4, ge=0, le=1, description="probability above which a word enters the query; SeaKR's code uses 0.9"
    )
    titles: Titles = Field(
        "missing", description="show the title before a document: missing (if it is not in the text), always, never"
    )
    demonstrations: int = Field(10, ge=0, le=10, description="worked examples in the prompt")
    max_new_tokens: int = Field(48, ge=1, description="tokens of a sentence")
    chain_tokens: int = Field(192, ge=1, description="tokens of a chain of reasoning over the kept documents")
    at_once: int = Field(4, ge=1, description="questions answered at the same time")
    batch_rows: int = Field(256, ge=1, description="answers sampled at once; a GPU has room for more")
    batch_prompt_tokens: int = Field(20_480, ge=64, description="prompt tokens held at once")
    dtype: DtypeName = Field("auto", description="auto: as the gate was made")
    device: str = Field("auto", description="auto, cpu or cuda")

    @model_validator(mode="after")
    def _one_choice(self) -> SeakrPipelineConfig:
        if self.threshold is not None and (ways := {"ratio", "threshold_questions"} & self.model_fields_set):
            raise ValueError(f"key '{min(ways)}': chooses a threshold, and key 'threshold' is one; remove one of them")
        check_counts(self, "method", "multi_hop", "max_steps", "max_documents", "word_confidence", "chain_tokens")
        if self.no_reason and self.method != "multi_hop":
            raise ValueError("key 'no_reason': single_hop does not reason; remove it")
        return self

    @property
    def gate(self) -> Path:
        """The gate's folder."""
        return self.seakr or self.run / "seakr"

    def settings(self, threshold: float) -> SelfAwareSettings:
        """Those of the loop."""
        named = self.model_dump(include={"documents", "max_steps", "max_documents", "word_confidence"})
        return SelfAwareSettings(threshold, rerank=not self.no_rerank, reason=not self.no_reason, **named)

    def begin(self, threshold: float) -> Begin:
        """A function that starts the coroutine of a question."""
        pipeline, settings = PIPELINES[self.method], self.settings(threshold)
        return lambda question: pipeline(question, settings)


def first_thoughts(
    questions: Sequence[Question], begin: Begin, thinking: AnswerEngine, at_once: int = 8
) -> Iterator[Thought]:
    """First thoughts of a pipeline (the first sentence, or the direct answer), before any search."""
    for start in range(0, len(questions), at_once):
        coroutines = [begin(question) for question in questions[start : start + at_once]]
        requests = [next(coroutine) for coroutine in coroutines]
        prompts = [prompt for request in requests if isinstance(request, list) for prompt in request]
        yield from (reply.thought for reply in thinking.think(prompts))
        for coroutine in coroutines:
            coroutine.close()


def for_ratio(uncertainties: Sequence[float], ratio: float) -> float:
    """Threshold that this share of the dev questions' first thoughts exceeds. Raises :class:`UserError`."""
    if not len(uncertainties):
        raise UserError("no dev question to choose the threshold on; name --threshold, or add dev questions")
    return float(np.quantile(np.asarray(uncertainties, dtype=np.float64), 1 - ratio))


# what a threshold chosen on dev depends on: variants that differ elsewhere share it
_FIRST_THOUGHT = (
    "base_model", "settings", "method", "signal", "ratio", "threshold_questions", "demonstrations", "max_new_tokens",
    "dtype", "questions.jsonl", "rules", MODEL_FILES,
)  # fmt: skip
_RULES = 5  # of the loops: traces and thresholds by other rules are not resumed (5: "none of the above" is missing)
_CHANGEABLE = {"run", "seakr", "limit", "at_once", "batch_rows", "batch_prompt_tokens", "device"}


class SeakrRun:
    """One pipeline's answers under one name. ``questions`` are those to answer, ``out`` the file of their traces.

    Raises :class:`UserError` for a run folder without the questions, or traces of other settings under that name.
    """

    def __init__(self, config: SeakrPipelineConfig, name: str) -> None:
        self.config = config
        self.name = name
        self.out = config.run / FOLDER / f"{name}.jsonl"
        self.inputs = [config.run / "questions.jsonl", config.run / "passages.jsonl"]
        check_unchanged(*self.inputs)
        everything = [question for _, question in read_questions(self.inputs[0])]
        self.questions = choose_questions(everything, config.split, config.limit)
        if not self.questions:
            raise UserError(f"{at(self.inputs[0])}: no question of split '{config.split}'")
        self._dev = choose_questions(everything, "dev", config.threshold_questions)
        self._asked = {question.id: question for question in everything}
        self._key = run_settings(config) | {file.name: file_sha256(file) for file in self.inputs}
        with self._file():
            self.n_left = len(self._unanswered())

    def _file(self) -> Records:
        return Records(self.out, self._key, "name another --name, or move or delete this file", growing=True)

    def _unanswered(self) -> list[Question]:
        done = {trace.question_id for trace in jsonl.read(Trace, self.out)}
        return [question for question in self.questions if question.id not in done]

    def answer(self, engine: AnswerEngine | None = None) -> Iterator[Trace]:
        """Answer what is not answered yet, by the gate's model or another ``engine``.

        Each trace is on disk when it is yielded.
        """
        with self._file() as file:
            if not (todo := self._unanswered()):
                return
            thinking = engine or open_thinking(self.config)
            searcher, threshold = open_search(self.config.run), self._threshold(thinking)
            how: dict[str, Any] = {"method": self.config.method, "at_once": self.config.at_once}
            begin = self.config.begin(threshold)
            for trace in answer_all(todo, begin, thinking, searcher, threshold=threshold, **how):
                file.add(trace)
                yield trace

    def traces(self) -> list[Trace]:
        """All that are stored, in the order of their questions, then any of another limit; graded by today's rules."""
        order = {question.id: i for i, question in enumerate(self.questions)}
        stored = sorted(jsonl.read(Trace, self.out), key=lambda trace: order.get(trace.question_id, len(order)))
        pairs = ((self._asked.get(trace.question_id), trace) for trace in stored)
        return [
            trace if question is None else replace(trace, **grades(question, trace.answer)) for question, trace in pairs
        ]

    def _threshold(self, thinking: AnswerEngine) -> float:
        begin = self.config.begin(0.0)  # what is thought first does not depend on it
        if self.config.threshold is not None:
            return self.config.threshold
        key = {name: self._key[name] for name in _FIRST_THOUGHT if name in self._key}
        note = self.out.with_name(f"threshold_{identity_of(json.dumps(key, sort_keys=True))}.json")
        artifact = Artifact(note, "run_seakr", {}, key=key)
        if artifact.is_current():
            return float(jsonl.read_json(note)["threshold"])
        thoughts = first_thoughts(self._dev, begin, thinking)
        bar = progress_bar(thoughts, desc=f"{self.name}, threshold", unit="dev questions", total=len(self._dev))
        us = [thought.uncertainty for thought in bar]
        threshold = for_ratio(us, self.config.ratio)
        content = {"threshold": threshold, "ratio": self.config.ratio, "n_dev": len(us), "uncertainties": us}
        write_atomically(note, json.dumps(content) + "\n")
        artifact.finish()
        return threshold

    @property
    def signal(self) -> str:
        """Name of the deciding uncertainty."""
        return str(self.config.signal or self._key["settings"]["signal"])


def run_settings(config: SeakrPipelineConfig) -> dict[str, Any]:
    """All settings that answers depend on, those of the gate and its model's files among them."""
    key = config.model_dump(mode="json", include=set(SeakrPipelineConfig.model_fields) - _CHANGEABLE)
    card = SeakrCard.read(config.gate)
    key |= {"rules": _RULES} | card.model_dump(mode="json", include={"base_model", "settings"})
    key["dtype"] = card.dtype if key["dtype"] == "auto" else key["dtype"]
    if files := hashes_of(key["base_model"]):
        key[MODEL_FILES] = files
    return key


def open_thinking(config: SeakrPipelineConfig) -> PromptEngine:
    """The gate's model, ready to think. Raises :class:`UserError`."""
    from kbtrain.gates.answering import open_base_model
    from kbtrain.models.batching import BatchLimits

    card = SeakrCard.read(config.gate)
    changes: dict[str, Any] = {"max_new_tokens": config.max_new_tokens}
    if config.signal is not None:
        changes["signal"] = config.signal
    model, tokenizer = open_base_model(card, config.gate, config.dtype, config.device)
    limits = BatchLimits(rows=config.batch_rows, prompt_tokens=config.batch_prompt_tokens)
    engine = Uncertainty(model, tokenizer, card.settings.model_copy(update=changes), limits)
    return PromptEngine(engine, config.demonstrations, config.chain_tokens, config.titles)


def open_search(run: Path) -> Searcher:
    """BM25 over the run folder's passages, with an index of its own: RUN/bm25 may be of another corpus."""
    from kbtrain.retrieval.base import DistinctSearch
    from kbtrain.retrieval.retrieve_stage import open_index

    return DistinctSearch(open_index(run / "passages.jsonl", run / FOLDER / "bm25"))


def choose_questions(questions: Sequence[Question], split: Split, limit: int | None) -> list[Question]:
    """Questions of a split; a smaller ``limit`` chooses a part of what a larger one does, in any order."""
    of_split = [question for question in questions if question.split == split]
    if limit is None or limit >= len(of_split):
        return of_split
    ranked = sorted(of_split, key=lambda question: hashlib.blake2b(question.id.encode()).digest())
    chosen = {question.id for question in ranked[:limit]}
    return [question for question in of_split if question.id in chosen]
