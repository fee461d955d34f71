"""Sample a model's answers with and without retrieval: questions.jsonl + evidence.jsonl -> samples.db.

Every finished batch is durable. An interrupted run, started again, ends with the same bytes as an uninterrupted one.
--backend vllm or openai samples the answers elsewhere; --engine ray distributes them over a Ray cluster. --shard 3/8
samples an eighth of them into a separate store, and data_gen/merge.py joins the eight. The pilot's greedy answers with
the chosen search are used, not requested again, unless --keep-states reads the model meanwhile.

Examples:
  kbtrain run sample --run runs/demo --model smollm2-135m-instruct
  kbtrain run sample --config sample_demo
  kbtrain run sample --run runs/qwen --model Qwen/Qwen2-7B-Instruct --conditions "[llm, rag]" --dry-run
  kbtrain run sample --run runs/qwen --model Qwen/Qwen2-7B-Instruct --backend vllm --tensor-parallel 4
  kbtrain run sample --run runs/qwen --model Qwen/Qwen2-7B-Instruct --backend openai --server-url http://h:8000/v1
  kbtrain run sample --run runs/qwen --shard $SLURM_ARRAY_TASK_ID/8
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from kbtrain.config import run_script
from kbtrain.distributed.ray_cluster import EngineConfig, engine
from kbtrain.errors import at
from kbtrain.evaluation.search_pilot import SearchSetting
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import check_current, check_unchanged, file_sha256, hashes, meta_of, write_meta
from kbtrain.io.store import SampleStore, writing
from kbtrain.llm.backends import LLMConfig, later_defaults
from kbtrain.llm.base import AnswerRequest, Sampling
from kbtrain.llm.forecast import ForecastConfig, forecast
from kbtrain.llm.outputs import SilentAnswers
from kbtrain.llm.sample_stage import (
    AnswersWithFacts,
    Engine,
    SamplingJob,
    SamplingPlan,
    Shard,
    check_files,
    local,
    mask_leaks,
    refusal_text,
)
from kbtrain.net import split_query
from kbtrain.prompts.own import Part, read_prompts
from kbtrain.records import Condition, SampleSet, Split
from kbtrain.runtime.progress import progress_bar

# settings that a sampling's answers do not share with the pilot's though they were asked alike
_OF_THE_JOB = ("samples", "questions", "evidence", "shard", "n_expected")


class SampleConfig(EngineConfig, ForecastConfig, LLMConfig):
    run: Path = Field(Path("runs/demo"), description="run folder with questions.jsonl and evidence.jsonl")
    sampling_run: str = Field("main", description="name of this sampling run in the store")
    conditions: tuple[Condition, ...] = Field(
        ("llm", "rag"),
        min_length=1,
        description="llm, rag, and mask (answers hidden in the passages: only for the paper's analyses)",
    )
    samples: dict[Split, Annotated[int, Field(ge=0)]] = Field(
        {"train": 30, "dev": 30, "test": 30},
        description="drawn answers per question, beside the greedy one; a split without a number gets the greedy alone",
    )
    mask_questions: dict[Split, Annotated[int, Field(ge=0)]] | None = Field(
        None, description="number of questions asked under mask; null: all"
    )
    prompts: dict[Part, Path] = Field(
        {}, description="own templates in files: {llm: FILE, rag: FILE, system: FILE}, with {question} and {evidence}"
    )
    shard: str | None = Field(None, description="sample only part i of n, as i/n, counted from 1; null: all")
    keep_states: bool = Field(
        False, description="store the hidden states that a probe and a draft probe read, in RUN/states"
    )
    allow_empty: bool = Field(
        False, description="continue although over a fifth of the answers are empty, cut early, or reasoning alone"
    )

    @model_validator(mode="after")
    def _conditions(self) -> SampleConfig:
        if len(set(self.conditions)) < len(self.conditions):
            raise ValueError("key 'conditions': name each condition once")
        return self

    @model_validator(mode="after")
    def _states(self) -> SampleConfig:
        if not self.keep_states:
            return self
        from kbtrain.gates.probe.gate import DRAFT_TOKENS

        if not self.kind.states or self.engine != "local":
            raise ValueError("key 'keep_states': a backend with a model, and engine local, read states")
        if self.kind.server and (self.dtype == "auto" or self.server_endpoint != "completions"):
            raise ValueError(
                "key 'keep_states': of a server name its number format (dtype: bf16, fp16 or fp32) and ask its "
                "completions endpoint, whose prompts are token ids"
            )
        if "llm" not in self.conditions:
            raise ValueError("key 'keep_states': the states are those of condition llm, which is not sampled")
        if self.max_new_tokens <= DRAFT_TOKENS or self.stop != Sampling().stop:
            raise ValueError(
                f"key 'keep_states': a draft has {DRAFT_TOKENS} tokens and stops at a line's end: so must answers, and "
                "be longer (stop, max_new_tokens)"
            )
        return self


def prompts_of_pilot(evidence: Path) -> dict[Part, Path]:
    """Templates that the pilot chose with these passages; none: the project's."""
    return {part: Path(path) for part, path in meta_of(evidence).get("prompts", {}).items()}


def main(config: SampleConfig) -> None:
    started, shard = time.monotonic(), Shard.parse(config.shard)
    questions, evidence = config.run / "questions.jsonl", config.run / "evidence.jsonl"
    check_unchanged(questions)
    check_current(evidence, questions)
    counts = check_files(questions, evidence)
    if not config.prompts:
        config = config.model_copy(update={"prompts": prompts_of_pilot(evidence)})
    prompts = read_prompts(config.prompts)
    plan = SamplingPlan(questions, evidence, config.conditions, dict(config.samples), config.mask_questions, prompts)
    total = plan.n_requests(counts)
    print(model_line(config))
    print(f"{sum(counts.values())} questions, {total} prompts under {', '.join(config.conditions)}")
    if "mask" in config.conditions and (leaks := mask_leaks(evidence)):
        print(f"condition mask: a reference answer shows through the mask of {leaks} questions")
    if not shard.is_whole:
        print(f"shard {config.shard}: {shard.n_requests(total, config.window)} of them")
    if config.dry_run:
        return look_ahead(config, plan, shard)

    target = config.run / shard.store_name
    job = SamplingJob.from_config(config, config.sampling_run, plan, shard, total)
    with writing(target, job.run), SampleStore(target) as store:
        n_stored, silent = job.n_stored(store), SilentAnswers()
        silent.add(store.answers(job.run))
        n_missing = count_lacking(config, store, job) if n_stored else 0
        if n_missing:
            print(f"states of {n_missing} questions are missing: their batches are sampled again, with equal answers")
        if n_stored >= job.total and job.run in store.runs() and not n_missing:
            print(f"all {n_stored} prompts are in {target} already")
        else:
            piloted = answers_of_pilot(config, job)
            if piloted:
                print(f"{len(piloted)} greedy answers are the pilot's")
            with progress_bar(total=job.total, initial=n_stored, desc="sample", unit="prompts") as bar:
                for n in job.sample(store, with_greedy_of(piloted, _engine(config)), silent, config.allow_empty):
                    bar.update(n)
            print(f"{job.total} prompts, {job.total - n_stored} of them now -> {target}")
        print(silent.line() + notes(store, job.run, config.max_prompt_tokens))
        if not config.allow_empty:
            silent.check(f"{at(target)}: run '{job.run}'")
        key = {"questions": file_sha256(questions), "run_meta": store.run_meta(job.run)}
    write_meta(target, stage="sample", config=config, inputs=[questions, evidence],
               extra=key, started=started)  # fmt: skip


def model_line(config: SampleConfig) -> str:
    """The model that answers, where, and how many answers a prompt has; a default one is marked."""
    # without its query, which may hold a key
    server = f" at {split_query(config.server_url)[0]}" if config.kind.server and config.server_url else ""
    default = " (the default: name yours by --config server.yaml or --model)"
    named = "" if "model" in config.model_fields_set else default
    answers = ", ".join(f"{split} {n + 1}" for split, n in config.samples.items())
    return f"model {config.model}{named}, {config.backend}{server}; answers to a prompt: {answers}"


def notes(store: SampleStore, run: str, room: int) -> str:
    """Further lines: prompts that the server refused, and those that lost evidence; empty where there are none."""
    refused, cut = refusal_text(store, run), store.cut_prompts(run)
    lines = [f"refused by the server, so without answers and labels: {refused}"] if refused else []
    lines += [f"{cut} prompts lost evidence from their tail (max_prompt_tokens: {room})"] if cut else []
    return "".join(f"\n{line}" for line in lines)


def _engine(config: SampleConfig) -> Engine:
    """This process, or a Ray cluster."""
    if config.engine == "ray":
        from kbtrain.distributed.ray_work import RaySampling

        return engine(config, local, RaySampling)
    if not config.keep_states:
        return local
    from kbtrain.gates.probe.sampled_states import keeping_states

    return keeping_states(config.run)


def answers_of_pilot(config: SampleConfig, job: SamplingJob) -> dict[tuple[str, str], SampleSet]:
    """The pilot's greedy answers to requests of ``job``, by question and condition: asked with the same text and
    settings. None with ``keep_states``, whose drafts are read while the model writes them."""
    folder, choice = config.run / "pilot", config.run / "pilot.json"
    if config.keep_states or not path_exists(choice) or not path_exists(folder / "samples.db"):
        return {}
    report = jsonl.read_json(choice)
    # the best one has been asked, the chosen one not if its k was given
    chosen, best = SearchSetting(**report["chosen"]), SearchSetting(**report["best"]["setting"])
    names: dict[Condition, tuple[str, Path]] = {
        "llm": (chosen.without, folder / best.file_name), "rag": (chosen.name, folder / chosen.file_name)
    }  # fmt: skip
    defaults: dict[str, Any] = {**later_defaults(), "own_prompts": None}  # omitted from a run's settings
    settings = {**defaults, **{key: value for key, value in job.settings.items() if key not in _OF_THE_JOB}}
    settings |= {} if config.dtype == "auto" else {"dtype": config.dtype.removesuffix("-anyway")}
    texts, found = dict[tuple[str, str], str](), dict[tuple[str, str], SampleSet]()
    with SampleStore(folder / "samples.db", read_only=True) as store:
        for condition, (name, hits) in names.items():
            questions = folder / "questions.jsonl"
            if name not in store.runs() or not path_exists(hits):
                continue
            noted = {"dtype": settings.get("dtype"), **store.run_meta(name)}  # no server notes one
            # a later pilot that was refused may have written other files
            read = {"questions": questions} | ({"evidence": hits} if condition == "rag" else {})
            if {**settings, **hashes(read)}.items() <= {**defaults, **noted}.items():
                plan = replace(job.plan, questions=questions, evidence=hits, conditions=(condition,), samples={})
                texts |= {(r.question.id, condition): r.text(r.evidence) for r in plan.requests()}
                found |= {(row.question_id, condition): row for row in store.iterate(name) if row.greedy is not None}
    asked = (((r.question.id, r.condition), r) for r in job.requests())
    return {key: found[key] for key, r in asked if key in found and texts[key] == r.text(r.evidence)}


def with_greedy_of(piloted: Mapping[tuple[str, str], SampleSet], engine: Engine) -> Engine:
    """``engine``, which is not asked for the greedy answers that are known."""

    def answer(
        config: LLMConfig, windows: Iterator[list[AnswerRequest]], done: Collection[tuple[str, str]]
    ) -> Iterator[AnswersWithFacts]:
        whole: list[SampleSet] = []  # nothing is drawn to these
        facts: dict[str, Any] = {}

        def lacking(window: list[AnswerRequest]) -> list[AnswerRequest]:
            asked = []
            for request in window:
                known = piloted.get((request.question.id, request.condition))
                if known is None or request.n:
                    asked.append(request if known is None else replace(request, greedy=False))
                elif key_of(known) not in done:
                    whole.append(known)
            return asked

        for facts, sets in engine(config, map(lacking, windows), done):
            yield facts, [with_greedy(drawn) for drawn in sets]
        yield facts, whole

    def with_greedy(drawn: SampleSet) -> SampleSet:
        known = piloted.get(key_of(drawn))
        return drawn if known is None or drawn.refused is not None else replace(known, samples=drawn.samples)

    def key_of(answers: SampleSet) -> tuple[str, str]:
        return answers.question_id, answers.condition

    return answer if piloted else engine


def count_lacking(config: SampleConfig, store: SampleStore, job: SamplingJob) -> int:
    """Number of answered questions whose states should be kept and are not."""
    if not config.keep_states:
        return 0
    from kbtrain.gates.probe import sampled_states

    done = store.done(job.run)
    answered = (request for request in job.requests() if (request.question.id, request.condition) in done)
    dtype = store.run_meta(job.run).get("dtype", config.dtype)
    return sampled_states.count_lacking(config, dtype, config.run, answered)


def look_ahead(config: SampleConfig, plan: SamplingPlan, shard: Shard) -> None:
    """Print the forecast, without regard to stored answers."""

    def requests() -> Iterator[AnswerRequest]:
        return itertools.chain.from_iterable(shard.windows(plan.requests(), config.window))

    prices = config.price_list()
    print("\n".join(forecast(config, requests).lines(prices)))


if __name__ == "__main__":
    run_script(main, SampleConfig, __doc__)
