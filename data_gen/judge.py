"""Let a judge grade the stored answers: questions.jsonl + samples.db -> verdicts.jsonl.

data_gen/label.py --verdicts reads them. Each distinct answer (after normalisation) is judged once, without its
question (KBM, figure 13 and A.2). Judges: llm (any back end, its reply is read), rules (each question's own rule).
An interrupted run resumes after its last batch. After more sampling, or for another sampling run, the model judges only
the new answers; one file has all verdicts.

Examples:
  kbtrain run judge --run runs/webqa --model Qwen/Qwen2-72B-Instruct --backend openai
  kbtrain run judge --run runs/demo --judge rules
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from kbtrain.answers import grading
from kbtrain.config import run_script
from kbtrain.io import jsonl
from kbtrain.io.provenance import Artifact, check_unchanged, file_sha256, meta_of
from kbtrain.io.store import SampleStore
from kbtrain.labeling.judges import JUDGE_AGAIN, Judge, LLMJudge, RuleJudge, is_judged, judgement
from kbtrain.labeling.verdicts import (
    Aligned,
    QuestionVerdicts,
    check_answers,
    count_verdicts,
    distinct_answers,
    judge_answers,
    verdicts_on,
)
from kbtrain.llm.backends import LLMConfig, open_llm
from kbtrain.llm.base import AnswerRequest
from kbtrain.llm.forecast import ForecastConfig, forecast
from kbtrain.questions.checks import read_questions
from kbtrain.records import Question
from kbtrain.runtime.progress import progress_bar

OF_THE_STORE = ("run", "answers")  # parts of the key on which no verdict by itself depends


class JudgeConfig(ForecastConfig, LLMConfig):
    run: Path = Field(Path("runs/demo"), description="run folder with questions.jsonl and samples.db")
    sampling_run: str = Field("main", description="name of the sampling run in the store")
    judge: Literal["llm", "rules"] = Field("llm", description="see above")
    batch: int = Field(512, ge=1, description="answers judged at once")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "verdicts.jsonl",)


def main(config: JudgeConfig) -> None:
    if config.dry_run:
        return look_ahead(config)
    source, store_path, target = (config.run / name for name in ("questions.jsonl", "samples.db", "verdicts.jsonl"))
    check_unchanged(source)
    check_answers(store_path, config.sampling_run)
    key = key_of(config, source, store_path)
    verdicts_made = Artifact(target, "judge", config, [source, store_path], key)
    current_line = f"{target} is there already, judged from the same questions and answers by the same judge"
    if config.judge == "llm" and is_judged(verdicts_made, config):
        return print(current_line)
    judge = configured_judge(config)
    key["judge"] = judge.facts()
    if verdicts_made.is_current():
        return print(current_line)
    known_verdicts, remedy = known_of(verdicts_made, config), JUDGE_AGAIN if config.judge == "llm" else ""
    with SampleStore(store_path, read_only=True) as store, verdicts_made.records(remedy) as file:
        for record in verdicts(config, store, source, judge, file.n, known_verdicts):
            file.add(record)
            file.flush()
        judged = jsonl.read(QuestionVerdicts, file.appended)
        counts = count_verdicts(judged, (question for _, question in read_questions(source)))
    verdicts_made.finish({"judge": key["judge"], "counts": counts})
    print(f"{file.n} questions, {counts['answers']} distinct answers judged by {judge.name}: {counts['right']} right, "
          f"abstained from {counts['abstained']}; {counts['choice_questions']} choice questions by their own rule, "
          f"{time.monotonic() - verdicts_made.started:.0f} s -> {target}")  # fmt: skip


def look_ahead(config: JudgeConfig) -> None:
    """Print how many distinct answers would be judged, by how many requests and tokens: those without a verdict by the
    same judge."""
    if config.judge != "llm":
        return print(f"judge {config.judge}: a rule, no model; no requests and no tokens")
    source, store_path, target = (config.run / name for name in ("questions.jsonl", "samples.db", "verdicts.jsonl"))
    stays = target.exists() and is_judged(
        of_any_store(Artifact(target, "judge", config, key=key_of(config, source, store_path))), config
    )

    def requests() -> Iterator[AnswerRequest]:
        known_verdicts = said_in(target) if stays else lambda question: {}
        with SampleStore(store_path, read_only=True) as store:
            store.run_meta(config.sampling_run)
            for _, question in read_questions(source):
                verdicts_of_question = known_verdicts(question)
                if question.grading != "option" and question.answers:
                    for i, (key, text) in enumerate(distinct_answers(store, config.sampling_run, question).items()):
                        if key not in verdicts_of_question:
                            judged = judgement(question, text, f"{question.id}/{i}")
                            yield AnswerRequest(judged, "llm", None, 0)

    prices = config.price_list()
    cost = forecast(config, requests)
    print(f"{cost.prompts} distinct answers to judge")
    print("\n".join(cost.lines(prices)))


def configured_judge(config: JudgeConfig) -> Judge:
    """The judge, a rule or a model."""
    if config.judge == "llm":
        return LLMJudge(open_llm(config))
    return RuleJudge()


def key_of(config: JudgeConfig, source: Path, answers: Path) -> dict[str, Any]:
    """All that the verdicts depend on besides the judge's facts: the same is gone on with after an interruption."""
    model = config.depends() if config.judge == "llm" else None
    # a model reads either characters: what it was paid for stays
    rules = grading.RULES if model else grading.rules_of(question for _, question in read_questions(source))
    hashes = {"questions": file_sha256(source), "answers": file_sha256(answers), **rules}
    return {"model": model, "run": config.sampling_run, **hashes}


def known_of(artifact: Artifact, config: JudgeConfig) -> Callable[[Question], grading.Verdicts]:
    """Verdicts of the same judge on answers to the same questions, in their order, from before there was more sampling
    or another run: one depends on the question, its gold answers and the answer, not on what else is stored."""
    is_same_judge = config.judge == "llm" and of_any_store(artifact).is_current()
    return said_in(artifact.path) if is_same_judge else lambda question: {}


def of_any_store(artifact: Artifact) -> Artifact:
    """The verdicts with the store and the run in their key that the file notes."""
    stored_key, key = meta_of(artifact.path).get("key"), artifact.key or {}
    store_parts = {name: stored_key.get(name) for name in OF_THE_STORE} if isinstance(stored_key, dict) else {}
    return dataclasses.replace(artifact, key={**key, **store_parts})


def said_in(path: Path) -> Callable[[Question], grading.Verdicts]:
    """Verdicts of a file, asked for in the order of its questions."""
    return functools.partial(verdicts_on, Aligned(QuestionVerdicts, path))


def verdicts(
    config: JudgeConfig, store: SampleStore, source: Path, judge: Judge, skip: int,
    known_verdicts: Callable[[Question], grading.Verdicts],
) -> Iterator[QuestionVerdicts]:  # fmt: skip
    """Those of all questions but the first ``skip``; ``known_verdicts``: see :func:`known_of`."""
    total = sum(1 for _ in jsonl.lines(source))
    with progress_bar(total=total, initial=skip, desc="judge", unit="questions") as bar:
        questions = (question for _, question in read_questions(source))
        for question in itertools.islice(questions, skip):
            known_verdicts(question)
        for question_verdicts in judge_answers(
            store, config.sampling_run, questions, judge, config.batch, known_verdicts
        ):
            bar.update()
            yield question_verdicts


if __name__ == "__main__":
    run_script(main, JudgeConfig, __doc__)
