"""Let a judge grade the stored answers: questions.jsonl + samples.db -> verdicts.jsonl.

data_gen/label.py --verdicts reads them. Each distinct answer (after normalisation) is judged once, without its
question (KBM, figure 13 and A.2); --asks claims shows the question too, and asks if a long answer states every claim of
the accepted one and contradicts none. Judges: token (a transformers model that can only say 1 or 0, by their
probabilities), llm (any back end, its reply is read), exact, contains, option, rules (each question's own rule).
--labelled FILE says how far the judge agrees with people and needs no run: one answer a line, {"id", "answers",
"prediction", "right"}. Resumable: an interrupted run resumes after its last batch. A model is not asked again about
answers that stood there before more sampling or another sampling run; the verdicts of all stand in one file.

Examples:
  python data_gen/judge.py --run runs/webqa --model Qwen/Qwen2-72B-Instruct --backend openai --judge llm
  python data_gen/judge.py --run runs/demo --judge token --labelled graded_by_hand.jsonl
  python data_gen/judge.py --labelled graded_by_hand.jsonl --judge contains --agreement-only
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from kbtrain.answers import grading
from kbtrain.config import check_counts, run_script
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.artifact import Artifact
from kbtrain.io.provenance import check_unchanged, file_sha256, meta_of, meta_path, read_meta, write_atomically
from kbtrain.io.store import SampleStore
from kbtrain.labeling.judges import (
    JUDGE_AGAIN,
    Judge,
    LabelledAnswer,
    ModelJudgeConfig,
    RuleJudge,
    agreement,
    is_judged,
    judgement,
    line,
    open_judge,
    read_labelled,
)
from kbtrain.labeling.verdicts import (
    Aligned,
    QuestionVerdicts,
    check_answers,
    count_verdicts,
    distinct_answers,
    judge_answers,
)
from kbtrain.llm.base import AnswerRequest
from kbtrain.llm.forecast import ForecastConfig, forecast
from kbtrain.prompts.kbm import Judged
from kbtrain.questions.checks import read_questions
from kbtrain.records import Question
from kbtrain.runtime.progress import progress_bar

MODELS = ("token", "llm")  # judges that are none of the rules
OF_THE_STORE = ("run", "answers")  # parts of the key on which no verdict by itself depends


class JudgeConfig(ForecastConfig, ModelJudgeConfig):
    run: Path = Field(Path("runs/demo"), description="run folder with questions.jsonl and samples.db")
    sampling_run: str = Field("main", description="name of the sampling run in the store")
    judge: Literal["token", "llm", "exact", "contains", "option", "rules"] = Field("token", description="see above")
    asks: Literal["answer", "claims"] = Field(
        "answer", description="llm: does the answer contain the accepted one, or state its claims (long answers)?"
    )
    batch: int = Field(512, ge=1, description="answers judged at once")
    labelled: Path | None = Field(None, description="answers that people have graded: report the agreement")
    agreement_only: bool = Field(False, description="stop after the agreement")

    @property
    def judged(self) -> Judged:
        """Subject of the judge's prompt."""
        return "claims" if self.asks == "claims" else self.JUDGED

    @model_validator(mode="after")
    def _asks_a_model(self) -> JudgeConfig:
        check_counts(self, "judge", "llm", "asks")
        return self

    def writes(self) -> tuple[Path, ...]:
        return () if self.agreement_only else (self.run / "verdicts.jsonl",)


def main(config: JudgeConfig) -> None:
    if config.dry_run:
        return look_ahead(config)
    if config.agreement_only:
        return agree_only(config)
    source, store_path, target = (config.run / name for name in ("questions.jsonl", "samples.db", "verdicts.jsonl"))
    check_unchanged(source)
    check_answers(store_path, config.sampling_run)
    inputs = [source, store_path, *([config.labelled] if config.labelled else [])]
    key = key_of(config, source, store_path)
    verdicts_made = Artifact(target, "judge", config, inputs, key)
    current_line = f"{target} is there already, judged from the same questions and answers by the same judge"
    if config.labelled is None and config.judge in MODELS and is_judged(verdicts_made, config):
        return print(current_line)
    judge = configured_judge(config)
    key["judge"] = judge.facts()
    extra: dict[str, Any] = {"judge": key["judge"]}
    if config.labelled is not None:
        measured = agreement(judge, read_labelled(config.labelled))
        extra["agreement"] = dataclasses.asdict(measured)
        print(line(measured))
    if verdicts_made.is_current():
        if config.labelled is not None:
            note_agreement(target, config.labelled, extra["agreement"])
        return print(current_line)
    known_verdicts, remedy = known_of(verdicts_made, config), JUDGE_AGAIN if config.judge in MODELS else ""
    with SampleStore(store_path, read_only=True) as store, verdicts_made.records(remedy) as file:
        for record in verdicts(config, store, source, judge, file.n, known_verdicts):
            file.add(record)
            file.flush()
    counts = count_verdicts(jsonl.read(QuestionVerdicts, target), (question for _, question in read_questions(source)))
    verdicts_made.finish({**extra, "counts": counts})
    print(f"{file.n} questions, {counts['answers']} distinct answers judged by {judge.name}: {counts['right']} right, "
          f"abstained from {counts['abstained']}; {counts['choice_questions']} choice questions by their own rule, "
          f"{time.monotonic() - verdicts_made.started:.0f} s -> {target}")  # fmt: skip


def look_ahead(config: JudgeConfig) -> None:
    """Print how many distinct answers would be judged, by how many requests and tokens: those without a verdict by the
    same judge. People's answers are among them."""
    if config.judge not in MODELS:
        return print(f"judge {config.judge}: a rule, no model; no requests and no tokens")
    settings = config if config.judge == "llm" else config.model_copy(update={"max_new_tokens": 1})
    graded = judged_beside(config)
    source, store_path, target = (config.run / name for name in ("questions.jsonl", "samples.db", "verdicts.jsonl"))
    stays = not config.agreement_only and target.exists()
    stays = stays and is_judged(
        of_any_store(Artifact(target, "judge", config, key=key_of(config, source, store_path))), config
    )

    def requests() -> Iterator[AnswerRequest]:
        for row in graded:
            yield asked_for(config, row.as_question(), row.prediction, row.id)
        if config.agreement_only:
            return
        known_verdicts = said_in(target) if stays else lambda question: {}
        with SampleStore(store_path, read_only=True) as store:
            store.run_meta(config.sampling_run)
            for _, question in read_questions(source):
                verdicts_of_question = known_verdicts(question)
                if question.grading != "option" and question.answers:
                    for i, (key, text) in enumerate(distinct_answers(store, config.sampling_run, question).items()):
                        if key not in verdicts_of_question:
                            yield asked_for(config, question, text, f"{question.id}/{i}")

    prices = config.price_list()
    cost = forecast(settings, requests, config.measure)
    beside = f", and {len(graded)} that people have graded" if graded else ""
    print(f"{cost.prompts - len(graded)} distinct answers to judge{beside}")
    print("\n".join(cost.lines(prices, "judgements")))


def judged_beside(config: JudgeConfig) -> list[LabelledAnswer]:
    """Answers that people have graded and a model is asked about: not multiple choice, which keeps its own rule."""
    rows = read_labelled(graded_by_people(config)) if config.labelled or config.agreement_only else []
    return [row for row in rows if row.grading != "option"]


def asked_for(config: JudgeConfig, question: Question, answer: str, name: str) -> AnswerRequest:
    """One judgement as a request."""
    return AnswerRequest(judgement(question, answer, name, config.judged), "llm", None, config.votes, not config.votes)


def graded_by_people(config: JudgeConfig) -> Path:
    """The file of people's verdicts. Raises :class:`UserError` where none was named."""
    if config.labelled is None:
        raise UserError("key 'agreement_only': needs labelled")
    return config.labelled


def note_agreement(target: Path, labelled: Path, figures: Mapping[str, Any]) -> None:
    """Add the agreement with people to the meta data of verdicts that are there already."""
    meta, labelled_hash = read_meta(target), file_sha256(labelled)
    is_same_file = (
        meta["inputs"].get(labelled.name, labelled_hash) == labelled_hash
    )  # else another file's, which later stages compare
    meta |= {
        "inputs": {**meta["inputs"], labelled.name if is_same_file else str(labelled): labelled_hash},
        "agreement": figures,
    }
    write_atomically(meta_path(target), json.dumps(meta, ensure_ascii=False, indent=1) + "\n")


def agree_only(config: JudgeConfig) -> None:
    """Say how far the judge agrees with people."""
    source = graded_by_people(config)
    print(line(agreement(configured_judge(config), read_labelled(source))))


def configured_judge(config: JudgeConfig) -> Judge:
    """The judge, a rule or a model."""
    if config.judge in MODELS:
        return open_judge(config.judge, config)
    return RuleJudge(None if config.judge == "rules" else config.judge)


def key_of(config: JudgeConfig, source: Path, answers: Path) -> dict[str, Any]:
    """All that the verdicts depend on besides the judge's facts: the same is gone on with after an interruption."""
    model = config.depends() if config.judge in MODELS else None
    # a model reads either characters: what it was paid for stays
    rules = grading.RULES if model else grading.rules_of(question for _, question in read_questions(source))
    hashes = {"questions": file_sha256(source), "answers": file_sha256(answers), **rules}
    return {"model": model, "run": config.sampling_run, **hashes}


def known_of(artifact: Artifact, config: JudgeConfig) -> Callable[[Question], grading.Verdicts]:
    """Verdicts of the same judge on answers to the same questions, in their order, from before there was more sampling
    or another run: one depends on the question, its gold answers and the answer, not on what else is stored."""
    is_same_judge = config.judge in MODELS and of_any_store(artifact).is_current()
    return said_in(artifact.path) if is_same_judge else lambda question: {}


def of_any_store(artifact: Artifact) -> Artifact:
    """The verdicts with the store and the run in their key that the file notes."""
    stored_key, key = meta_of(artifact.path).get("key"), artifact.key or {}
    store_parts = {name: stored_key.get(name) for name in OF_THE_STORE} if isinstance(stored_key, dict) else {}
    return dataclasses.replace(artifact, key={**key, **store_parts})


def said_in(path: Path) -> Callable[[Question], grading.Verdicts]:
    """Verdicts of a file, asked for in the order of its questions."""
    file = Aligned(QuestionVerdicts, path)

    def known_verdicts(question: Question) -> grading.Verdicts:
        record = file.record_of(question)
        return {} if record is None else record.right

    return known_verdicts


def verdicts(
    config: JudgeConfig, store: SampleStore, source: Path, judge: Judge, skip: int,
    known_verdicts: Callable[[Question], grading.Verdicts],
) -> Iterator[QuestionVerdicts]:  # fmt: skip
    """Those of all questions but the first ``skip``; ``known``: see :func:`known_of`."""
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
