"""The sampling stage: requests -> answers -> store. One process writes the answers, wherever they are drawn.

Requests are a stream over the question and evidence files. For job arrays a run is cut into shards: shard i of n takes
every n-th window of the requests, which is what the sampler cuts into batches, so the answers are the same to the byte.
Questions and passages that answers are stored to stay: the run resumes with the files it began with.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kbtrain.answers.grading import is_empty
from kbtrain.answers.mask import mask_answers
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.files import has_content, path_exists
from kbtrain.io.provenance import MODEL_FILES, Artifact, file_sha256
from kbtrain.io.store import SampleStore
from kbtrain.llm.backends import LLMConfig, later_defaults, open_llm
from kbtrain.llm.base import LLM, AnswerRequest
from kbtrain.llm.outputs import FEW, FIRST, LEAST, AlikeAnswers, SilentAnswers
from kbtrain.models.batching import windows
from kbtrain.models.files_read import hashes_of
from kbtrain.prompts.kbm import evidence_text
from kbtrain.prompts.own import OwnPrompts
from kbtrain.records import Condition, Evidence, Question, SampleSet, Split

_REMEDY = "undo this, or name another folder by --run"


@dataclass(frozen=True)
class SamplingPlan:
    """Questions x conditions. ``samples`` gives the number of sampled answers by split (0: the greedy one only);
    ``mask_questions`` bounds how many questions of a split are asked under ``mask`` (None: all)."""

    questions: Path
    evidence: Path
    conditions: Sequence[Condition]
    samples: Mapping[Split, int]
    mask_questions: Mapping[Split, int] | None = None
    prompts: OwnPrompts | None = None

    def requests(self) -> Iterator[AnswerRequest]:
        """Every request, in the order of the question file; memory does not grow with it."""
        n_questions: Counter[Split] = Counter()
        for question, evidence in _pairs(self.questions, self.evidence):
            n_questions[question.split] += 1
            for condition in self.conditions:
                if condition != "mask" or n_questions[question.split] <= self._mask_limit(question.split):
                    text = None if condition == "llm" else evidence_text(evidence.hits, evidence.titles)
                    text = mask_answers(text, question) if condition == "mask" and text is not None else text
                    n = self.samples.get(question.split, 0)
                    yield AnswerRequest(question, condition, text, n, prompts=self.prompts)

    def n_requests(self, counts: Mapping[Split, int]) -> int:
        masked = int(sum(min(n, self._mask_limit(split)) for split, n in counts.items()))
        return sum(masked if condition == "mask" else sum(counts.values()) for condition in self.conditions)

    def _mask_limit(self, split: Split) -> float:
        return float("inf") if self.mask_questions is None else self.mask_questions.get(split, 0)


def check_files(questions: Path, evidence: Path) -> Counter[Split]:
    """Read both files to the end before any model is loaded; returns the number of questions of each split. Raises
    :class:`UserError` for a broken or repeated record and for evidence of another question."""
    counts: Counter[Split] = Counter()
    ids: set[str] = set()
    for question, _ in _pairs(questions, evidence):
        if question.id in ids:
            raise UserError(f"{at(questions)}: field 'id': duplicate '{question.id}'")
        if (not question.answers and question.gold == "given") or any(map(is_empty, question.answers)):
            raise UserError(f"{at(questions)}: field 'answers': question '{question.id}' has an empty answer or none")
        ids.add(question.id)
        counts[question.split] += 1
    if not counts:
        raise UserError(f"{at(questions)}: no questions in it")
    return counts


def mask_leaks(evidence: Path) -> int:
    """Number of questions whose evidence shows a reference answer after masking."""
    return sum(bool(evidence_of_question.mask_leak) for evidence_of_question in jsonl.read(Evidence, evidence))


def _pairs(questions: Path, evidence: Path) -> Iterator[tuple[Question, Evidence]]:
    both = itertools.zip_longest(jsonl.read(Question, questions), jsonl.read(Evidence, evidence))
    for number, (question, evidence_of_question) in enumerate(both, 1):
        if question is None or evidence_of_question is None or question.id != evidence_of_question.question_id:
            expected, got = (question and question.id), (evidence_of_question and evidence_of_question.question_id)
            raise UserError(
                f"{at(evidence, number)}: evidence of {got!r} where {expected!r} is due; run retrieve again"
            )
        yield question, evidence_of_question


@dataclass(frozen=True)
class Shard:
    """``index`` counts from 1; 1 of 1 is the undivided run."""

    index: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str | None) -> Shard:
        """From "3/8", or None for the whole. Raises :class:`UserError`."""
        if text is None:
            return cls()
        match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(f"key 'shard': expected 1/n to n/n (a Slurm array of n: --array=1-n), found '{text}'")
        return cls(int(match[1]), int(match[2]))

    @property
    def is_whole(self) -> bool:
        return self.count == 1

    @property
    def store_name(self) -> str:
        return "samples.db" if self.is_whole else f"samples.shard-{self.index}-of-{self.count}.db"

    def windows(self, requests: Iterable[AnswerRequest], size: int) -> Iterator[list[AnswerRequest]]:
        """This shard's windows of ``size`` requests, in their order."""
        for number, window in enumerate(windows(requests, size)):
            if number % self.count == self.index - 1:
                yield window

    def n_requests(self, total: int, size: int) -> int:
        """Number of requests in this shard, of ``total``. Raises :class:`UserError` for a shard with nothing in it."""
        if self.index > (most := -(-total // size)):
            raise UserError(
                f"key 'shard': nothing is left for shard {self.index}: {total} prompts are {most} windows "
                f"of {size}; use at most {most} shards, or a smaller window"
            )
        starts = range((self.index - 1) * size, total, self.count * size)
        return sum(min(size, total - start) for start in starts)


AnswersWithFacts = tuple[dict[str, Any], list[SampleSet]]  # facts of the model that answered, and its answers
Engine = Callable[[LLMConfig, Iterator[list[AnswerRequest]], Collection[tuple[str, str]]], Iterator[AnswersWithFacts]]


@dataclass(frozen=True)
class SamplingJob:
    """One shard of one run: requests, model, and the ``settings`` that the answers depend on (JSON values)."""

    config: LLMConfig
    run: str
    plan: SamplingPlan
    shard: Shard
    total: int  # question-conditions in this shard
    settings: Mapping[str, Any]

    @classmethod
    def from_config(cls, config: LLMConfig, run: str, plan: SamplingPlan, shard: Shard, total: int) -> SamplingJob:
        """The job with its settings; ``total`` counts the question-conditions of all shards."""
        share = shard.n_requests(total, config.window)
        files = {"questions": file_sha256(plan.questions), "evidence": file_sha256(plan.evidence)}
        settings = {**config.run_settings(), "samples": dict(plan.samples), **files}
        if plan.prompts is not None:
            settings["own_prompts"] = plan.prompts.as_record()
        if config.kind.model_files and (files := hashes_of(config.model)):
            settings[MODEL_FILES] = files
        if not shard.is_whole:
            settings |= {"shard": f"{shard.index}/{shard.count}", "n_expected": share}
        return cls(config, run, plan, shard, share, settings)

    def requests(self) -> Iterator[AnswerRequest]:
        return itertools.chain.from_iterable(self.shard.windows(self.plan.requests(), self.config.window))

    def n_stored(self, store: SampleStore) -> int:
        """Number of its question-conditions in the store, which may hold others of the run (another condition's, or
        more under mask). Raises :class:`UserError` if the run has other settings there."""
        if self.run not in store.runs():
            return 0
        stored = store.run_meta(self.run)
        defaults = {key: value for key, value in later_defaults().items() if key in stored}
        if "own_prompts" in stored:
            defaults["own_prompts"] = None
        store.begin(self.run, {**stored, **defaults, **self._settings(store)})
        done = store.done(self.run)
        return sum((request.question.id, request.condition) in done for request in self.requests()) if done else 0

    def _settings(self, store: SampleStore) -> dict[str, Any]:
        """The settings, with the stored numbers of answers where these differ in splits of none alone."""
        samples = store.run_meta(self.run).get("samples") if self.run in store.runs() else None
        same = isinstance(samples, Mapping) and all(
            samples.get(split, 0) == self.settings["samples"].get(split, 0)
            for split in {**samples, **self.settings["samples"]}
        )
        return {**self.settings, **({"samples": samples} if same else {})}

    def _golds(self) -> set[str]:
        first = itertools.islice(self.requests(), FIRST)
        return {answer for request in first for answer in request.question.answers}

    def sample(
        self, store: SampleStore, engine: Engine, silent: SilentAnswers | None = None, allow_empty: bool = False
    ) -> Iterator[int]:
        """Draw what is missing and store it; yields how many question-conditions were stored each time. ``silent``
        counts the answers. Raises :class:`UserError` as soon as more than a fifth of many say nothing, or nearly all
        the same, unless ``allow_empty``, and where the server refuses too many prompts; what was drawn is stored."""
        check_refusals(store, self)
        done, config = store.done(self.run), self.config
        place, silent = f"{at(store.path)}: run '{self.run}'", silent or SilentAnswers()
        alike = AlikeAnswers(self._golds)
        alike.add(itertools.islice(store.iterate(self.run), FIRST) if done else ())
        if not allow_empty:
            silent.check(place, LEAST)
            alike.check(place, LEAST)
        noted_facts: dict[str, Any] | None = None
        if config.dtype == "auto" and self.run in store.runs():
            # a begun run keeps its number format: 'auto' could mean another one on another machine
            config = config.model_copy(update={"dtype": store.run_meta(self.run).get("dtype", "auto")})
        windows = self.shard.windows(self.plan.requests(), config.window)
        for facts, sets in engine(config, windows, done):
            if facts != noted_facts:  # an engine of many machines tells the facts of each
                store.begin(self.run, {**self._settings(store), **facts})
                noted_facts = facts
            if sets:
                store.put(self.run, sets)
                yield len(sets)
                silent.add(sample for sample_set in sets for sample in sample_set.answers())
                alike.add(sets)
                if not allow_empty:
                    silent.check(place, LEAST)
                    alike.check(place, LEAST)
                if any(sample_set.refused is not None for sample_set in sets):
                    check_refusals(store, self)
        if not allow_empty:
            alike.check(place, FEW)
        if config.kind.server and alike.repeats():
            warnings.warn(
                f"{place}: the sampled answers to every prompt are the same: is there a cache in front of the server, "
                "or no temperature?",
                stacklevel=2,
            )


def check_refusals(store: SampleStore, job: SamplingJob) -> None:
    """Raise :class:`UserError` where the server has refused more than ``server_refused`` of a job's prompts."""
    if job.run not in store.runs():
        return
    if len(store.refusals(job.run)) > job.config.server_refused * job.total:
        kinds = refusal_text(store, job.run)
        raise UserError(
            f"key 'server_refused': the server refused {kinds} of {job.total} prompts, more than "
            f"{job.config.server_refused:.0%}; raise it, or change the prompts and name another sampling_run"
        )


def refusal_text(store: SampleStore, run: str) -> str:
    """``3 (content_filter 2, context_length 1; first: WORDS)`` of a run's refusals; empty for none."""
    if not (refusals := store.refusals(run)):
        return ""
    kinds = Counter(reason.partition(":")[0] for _, _, reason in refusals)
    listed = ", ".join(f"{kind} {n}" for kind, n in kinds.most_common())
    name, condition, reason = refusals[0]
    return f"{len(refusals)} ({listed}; first: '{name}' under '{condition}': {reason})"


def local(
    config: LLMConfig, windows: Iterator[list[AnswerRequest]], done: Collection[tuple[str, str]]
) -> Iterator[AnswersWithFacts]:
    """The engine of one process: it opens the model itself."""
    yield from answers_of(open_llm(config), config, windows, done)


def answers_of(
    llm: LLM, config: LLMConfig, windows: Iterator[list[AnswerRequest]], done: Collection[tuple[str, str]]
) -> Iterator[AnswersWithFacts]:
    facts = llm.facts()
    yield facts, []  # before the first answer, so that other settings are refused at once
    requests = itertools.chain.from_iterable(windows)
    first = next(requests, None)
    tokenizer = getattr(llm, "tokenizer", None)  # what a server puts around a prompt is unseen
    is_base = tokenizer is not None and not tokenizer.chat_template
    if first is not None and first.prompts is None and is_base:
        warnings.warn(
            f"{config.model}: no chat template: a base model continues a text, it does not answer; --prompts with a "
            "few questions and answers shows it the form (docs/tutorials/your-questions.md)",
            stacklevel=2,
        )
    for sets in llm.answer(itertools.chain([] if first is None else [first], requests), done):
        yield facts, sets


def check_replaceable(questions: Artifact, places: frozenset[str] = frozenset()) -> None:
    """Raise :class:`UserError` where a stage would replace answered questions by those of other options or data.
    ``places``: options that decide no question, as where something lies. The same questions are replaced freely."""
    if path_exists(questions.path) and (store := _store_of(questions.path, "questions")):
        reason = replace(questions, edited=True).why_not(places)  # an edit of the file does not count
        if reason:
            held = f"{store.name} holds answers to these questions"
            remedy = f"{_REMEDY} (more questions, too)"
            raise UserError(f"{at(questions.path)}: {held}, which were {reason}; {remedy}")


def check_passages_replaceable(evidence: Artifact) -> None:
    """Raise :class:`UserError` where other passages would take the place of those that stored answers were drawn with:
    their sampling run could not resume, and a web search's results may be gone for good."""
    if path_exists(evidence.path) and (store := _store_of(evidence.path, "evidence")):
        held = f"{store.name} holds answers that were drawn with these passages"
        raise UserError(f"{at(evidence.path)}: {held}, which were {evidence.why_not()}; {_REMEDY}")


def _store_of(file: Path, name: str) -> Path | None:
    """A store beside the questions or evidence with answers that note this file under ``name``; imported answers note
    no file, and count as to these questions as well."""
    now = file_sha256(file)
    unnamed = now if name == "questions" else None
    for path in sorted(file.parent.glob("samples*.db")):
        if not has_content(path):
            continue  # sampling resumes with it
        with SampleStore(path, read_only=True) as store:
            for run in store.runs():
                if store.run_meta(run).get(name, unnamed) == now and any(store.counts(run).values()):
                    return path
    return None
