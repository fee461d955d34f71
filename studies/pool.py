"""Pool questions of several run folders into one, with a new split: a run of public data sets for one model.

Writes OUTPUT/questions.jsonl, whose relation is the group's name (a data set, or a relation of one), so that the gate
relation_only knows the group alone. As many questions of each group are drawn as their sizes allow; those that share an
entity (where none is named, a gold passage), directly or through others, stay in one split; where that would put most
questions into one, those that join the splits are skipped and counted. With --screened a group is
taken only if the model knows --min-known of that run's training questions of it: right without passages, corrected for
guessing in multiple choice (a model that always says A knows nothing). The rule sees no gate, no dev and no test
question. Passages come by data_gen/retrieve.py --corpus.

Examples:
  python studies/pool.py --config studies/pool_public_en.yaml --output runs/screen --train 350 \\
      --dev 0 --test 0
  python studies/pool.py --config studies/pool_public_en.yaml --screened runs/screen --output runs/public
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pooled_questions import ACROSS, SPLITS, PoolRule, candidates, count_known, draw_evenly
from pydantic import Field

from kbtrain.answers.grading import is_yes_no, rule_verdict
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.provenance import Artifact
from kbtrain.io.store import SampleStore
from kbtrain.llm.sample_stage import check_replaceable
from kbtrain.questions.checks import check_near, read_questions
from kbtrain.questions.collect import Shares
from kbtrain.records import Question


class PoolConfig(Config):
    runs: tuple[Path, ...] = Field(min_length=1, description="run folders with questions.jsonl")
    output: Path = Field(description="run folder that gets the pooled questions")
    train: int = Field(800, ge=0, description="training questions of all groups together, at most")
    dev: int = Field(200, ge=0, description="largest number of dev questions; null: all")
    test: int = Field(500, ge=0, description="largest number of test questions; null: all")
    shares: Shares = Field((0.5, 0.15, 0.35), description="shares of train, dev, test in the fresh split")
    by_relation: tuple[str, ...] = Field((), description="data sets whose relations are groups of their own")
    popular: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(
        {}, description="data set: share of its questions, the best known, that count"
    )
    contains: tuple[str, ...] = Field((), description="data sets graded by containment in place of exact match")
    yes_no: Literal["with", "without"] = Field("with", description="questions whose gold answer is yes or no")
    set_as_source: bool = Field(False, description="each question's source is its data set: gates may read it")
    longest: int | None = Field(None, ge=1, description="most characters of a question with its options; null: any")
    screened: Path | None = Field(None, description="run folder pooled alike, with greedy answers to its training part")
    min_known: float = Field(
        0.15, ge=0, le=1, description="screened: share known, corrected for guessing, that admits a group"
    )
    sampling_run: str = Field("main", description="screened: name of the sampling run in samples.db")
    seed: int = Field(0, description="of the draw, which depends on it and on the ids only")

    def writes(self) -> tuple[Path, ...]:
        return (self.output / "questions.jsonl",)


PLACES = frozenset({"runs", "output"})  # options that decide no question


def main(config: PoolConfig) -> None:
    target = config.output / "questions.jsonl"
    inputs = [run / "questions.jsonl" for run in config.runs]
    if config.screened is not None:
        inputs += [config.screened / "questions.jsonl", config.screened / "samples.db"]
    pooled = Artifact(target, "pool", config, inputs)
    if pooled.is_current():
        print(f"{target} is there already, made with the same options from the same data")
        return
    check_replaceable(pooled, PLACES)
    rule = PoolRule(config.shares, config.popular, frozenset(config.by_relation), frozenset(config.contains),
                    config.longest, config.seed, config.set_as_source)  # fmt: skip
    across: Counter[str] = Counter()
    polar = Counter[str]()
    groups = candidates(_every(config, polar), rule, across)
    counts = {} if config.screened is None else count_known(_screening(config))
    admitted = {name for name, k in counts.items() if k.share >= config.min_known}
    left_out = sorted(name for name in groups if counts and name not in admitted)
    admitted_groups = {name: rows for name, rows in groups.items() if name not in left_out}
    questions = draw_evenly(admitted_groups, {"train": config.train, "dev": config.dev, "test": config.test})
    if not questions:
        skipped = ", ".join(left_out) or "none"
        raise UserError(f"no questions left to pool; groups skipped by --min-known {config.min_known:g}: {skipped}")
    jsonl.write(target, questions)
    splits = Counter(question.split for question in questions)
    pairs = check_near(target, Counter({split: splits[split] for split in SPLITS}))
    extra = {"splits": dict(splits), "groups": _sizes(questions), "left_out": left_out,
             **({"questions_left_out": dict(across)} if across else {}),
             "screening": {name: {**dataclasses.asdict(k), "share": k.share} for name, k in counts.items()},
             "left_out_yes_no": polar["yes_no"],
             "near_duplicates": None if pairs is None else len(pairs)}  # fmt: skip
    pooled.finish(extra)
    for name, k in counts.items():
        outcome = "skipped" if name in left_out else "taken"
        print(f"{name}: {k.right} of {k.n} right, {k.guessed:.0%} by guessing: {k.share:.1%} known, {outcome}")
    if polar:
        print(f"skipped: {polar['yes_no']} questions whose gold answer is yes or no")
    per_split = ", ".join(f"{split} {splits[split]}" for split in SPLITS)
    if across:
        print(f"skipped: {across[ACROSS]} questions that share an entity with two splits")
    print(f"{len(questions)} questions ({per_split}) of {len(admitted_groups)} groups -> {target}; near duplicates: "
          f"{'not looked for' if pairs is None else len(pairs)}")  # fmt: skip


def _every(config: PoolConfig, left_out: Counter[str]) -> Iterator[Question]:
    """All runs' questions that have answers and that ``yes_no`` keeps. Raises :class:`UserError` for one that two runs
    have."""
    first_runs: dict[str, Path] = {}
    for path in (run / "questions.jsonl" for run in config.runs):
        for line, question in read_questions(path):
            if question.gold != "given":
                continue
            if config.yes_no == "without" and is_yes_no(question):
                left_out["yes_no"] += 1
                continue
            if question.id in first_runs:
                also = f"'{question.id}' is also in {first_runs[question.id]}"
                raise UserError(f"{at(path, line, 'id')}: {also}; leave a run out, or give its questions other ids")
            first_runs[question.id] = path
            yield question


def _screening(config: PoolConfig) -> list[tuple[Question, bool]]:
    """The screened run's training questions, and whether each one's greedy answer without passages is right."""
    run = config.screened or Path()
    by_id = {question.id: question for _, question in read_questions(run / "questions.jsonl")}
    graded, without_verdict = [], 0
    with SampleStore(run / "samples.db", read_only=True) as store:
        for answers in store.iterate(config.sampling_run, "llm"):
            question = by_id.get(answers.question_id)
            if question is not None and question.split == "train" and answers.greedy is not None:
                right = rule_verdict(question, answers.greedy.text)
                without_verdict += right is None
                graded += [] if right is None else [(question, right)]
    if not graded:
        raise UserError(f"{run / 'samples.db'}: no greedy answer to a training question under condition 'llm'")
    if without_verdict:
        print(f"excluded from the screening: {without_verdict} answers to yes/no questions that say neither")
    return graded


def _sizes(questions: list[Question]) -> dict[str, dict[str, int]]:
    counts_of: dict[str, Counter[str]] = {}
    for question in questions:
        counts_of.setdefault(question.relation or question.dataset, Counter())[question.split] += 1
    return {name: {split: counts[split] for split in SPLITS} for name, counts in sorted(counts_of.items())}


if __name__ == "__main__":
    run_script(main, PoolConfig, __doc__)
