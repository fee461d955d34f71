"""Collect the questions of a data set and the passages that come with them: RUN/questions.jsonl, RUN/passages.jsonl.

Every record is checked; a bad one stops the stage with its file, line and field. Files may be compressed. --list shows
the data sets, where to get them, their licences and the fields that are kept.

Examples:
  kbtrain run collect --run runs/demo
  kbtrain run collect --list
  kbtrain run collect --run runs/nq --dataset nq_open --path NQ-open.dev.jsonl --limit 500 --pick random
  kbtrain run collect --run runs/mine --dataset jsonl --path my.jsonl --shares 0.5,0.25,0.25 --group-by intent
  kbtrain run collect --run runs/mine --dataset csv --path my.csv --columns "{text: ask, answers: gold}"
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from kbtrain.config import Config, run_script
from kbtrain.errors import at, did_you_mean
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import Artifact, meta_of, meta_path, read_meta, unchanged
from kbtrain.llm.sample_stage import check_replaceable
from kbtrain.questions.base import AnswerAs, Columns, Loaded, Reading
from kbtrain.questions.catalogue import (
    BY_COLUMNS,
    DATA_SETS,
    EMBEDDED_SETS,
    atlas_passages,
    catalogue_text,
    load,
    sources,
)
from kbtrain.questions.checks import MOST_COMPARED, check_near
from kbtrain.questions.collect import CollectCounts, PickRule, Shares, pick_questions, warnings, write_questions
from kbtrain.questions.columns import ColumnMap, Language
from kbtrain.records import Gold, Question, Split
from kbtrain.runtime.progress import progress_bar


class CollectConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder; created if it does not exist")
    dataset: str = Field(
        "atlas", description="name of a data set (--list shows them); jsonl, csv or datasets for your own questions"
    )
    path: Path | None = Field(None, description="the data set's file, archive or folder; not needed for the atlas")
    only: str | None = Field(
        None, description="in an archive or folder, read only files whose names match, such as '*dev*'"
    )
    split: Split | None = Field(None, description="train, dev or test; null: as the files say, otherwise test")
    shares: Shares | None = Field(None, description="shares of train, dev, test, as 0.5,0.25,0.25: splits by a hash")
    group_by: str | None = Field(None, description="jsonl, csv, datasets: column whose equal values stay in one split")
    columns: ColumnMap = Field({}, description="jsonl, csv, datasets: our field -> your column")
    answer_as: AnswerAs = Field("letter", description="with options: letter, number (from 1), index (from 0), text")
    language: Language = Field("en", description="language of the questions, for jsonl, csv and datasets")
    subset: str | None = Field(None, description="configuration of a Hugging Face data set")
    train: int | None = Field(None, ge=0, description="largest number of training questions; null: all")
    dev: int | None = Field(None, ge=0, description="largest number of dev questions; null: all")
    test: int | None = Field(None, ge=0, description="largest number of test questions; null: all")
    limit: int | None = Field(None, ge=0, description="largest number of questions in all splits together; null: all")
    pick: Literal["first", "random"] = Field("first", description="take the first questions, or draw them by seed")
    seed: int = Field(0, description="seed of a random draw, which depends only on it and on the ids")
    impossible: Literal["keep", "drop"] = Field(
        "keep", description="what to do with questions that have no answer (SQuAD 2.0)"
    )
    hidden: Literal["keep", "drop"] = Field(
        "drop", description="what to do with questions whose answers are not published (C-Eval test)"
    )
    without_gold: bool = Field(False, description="jsonl, csv, datasets: there are no reference answers")
    placeholders: tuple[str, ...] = Field(
        (), description="additional texts that mean a missing answer, as [None, unknown]"
    )
    list: bool = Field(False, description="list the data sets and stop")

    @model_validator(mode="after")
    def _check_data_set(self) -> CollectConfig:
        if self.dataset not in DATA_SETS:
            raise ValueError(f"unknown data set '{self.dataset}'; {did_you_mean(self.dataset, DATA_SETS)}")
        if self.limit is not None and not (self.train is self.dev is self.test is None):
            raise ValueError("limit is for all splits together; give it or train, dev, test, not both")
        if self.shares is not None and self.split is not None:
            raise ValueError("shares make all three splits; give them, or split")
        if self.without_gold and self.dataset not in BY_COLUMNS:
            raise ValueError(f"without_gold is for jsonl, csv and datasets; '{self.dataset}' has reference answers")
        if self.group_by is not None and self.shares is None:
            raise ValueError("group_by keeps questions together where shares make the splits; give shares, too")
        return self

    def writes(self) -> tuple[Path, ...]:
        return () if self.list else (self.run / "questions.jsonl", self.run / "passages.jsonl")


PLACES = frozenset({"run", "path", "list"})  # options that decide no question, where ids are not made of a file's name


def main(config: CollectConfig) -> None:
    if config.list:
        print(catalogue_text())
        return
    target = config.run / "questions.jsonl"
    questions = Artifact(target, "collect", config, sources(config.dataset, config.path))
    if questions.is_current() and corpus_whole(config.run):
        print(f"{target} is there already, made with the same options from the same data")
        return
    check_replaceable(questions, PLACES)
    columns = Columns(config.columns, config.answer_as, config.language, None, config.group_by, config.without_gold)
    reading = Reading(config.split, config.only, columns, config.subset, config.shares or (), config.placeholders)

    def picked(tally: CollectCounts) -> Iterator[Loaded]:
        return pick_questions(lambda: load(config.dataset, config.path, reading), pick_rule(config), tally)

    if is_renamed(config, target, picked(CollectCounts())):
        check_replaceable(questions, PLACES - {"path"})
    tally, atlas = CollectCounts(), config.dataset in EMBEDDED_SETS
    stream = picked(tally)
    places: dict[str, str] = {}
    bar = progress_bar(noting_places(stream, places), desc="collect", unit="questions")
    n, n_passages = write_questions(config.run, bar, atlas_passages() if atlas else (), tally)
    pairs = [] if atlas else check_near(target, tally.splits)
    if n_passages:
        replace(questions, path=config.run / "passages.jsonl").finish()
    # last: with its metadata in place the stage counts as done
    extra = {"splits": dict(tally.splits), "left_out": dict(tally.dropped), "impossible": tally.impossible,
             "near_duplicates": None if pairs is None else len(pairs), "n_passages": n_passages,
             **tally.gold.as_dict()}  # fmt: skip
    questions.finish(extra)
    per_split = ", ".join(f"{split} {tally.splits[split]}" for split in ("train", "dev", "test"))
    chinese = tally.chinese if config.dataset in BY_COLUMNS else 0  # other sets know their language
    for line in tally.gold.lines():
        print(line)
    near = pairs and [replace(p, id=places.get(p.id, p.id), other_id=places.get(p.other_id, p.other_id)) for p in pairs]
    for line in warnings(tally.splits, near, chinese):
        print(f"warning: {line}")
    passages = f" and {n_passages} passages" * bool(n_passages)
    print(f"{n} questions ({per_split}){passages} -> {config.run}; {tally}")  # the line that a chain shows


def is_renamed(config: CollectConfig, target: Path, now: Iterable[Loaded]) -> bool:
    """True if the data have another name than when these questions were made, by which ids, sets or splits differ."""
    before = Path(str(meta_of(target).get("config", {}).get("path")))
    is_asked = config.path is not None and before.name != config.path.name and any(config.run.glob("samples*.db"))
    if not is_asked or not path_exists(target):
        return False
    pairs = zip(now, jsonl.read(Question, target), strict=False)
    by_name = operator.attrgetter("id", "dataset", "split")
    return any(by_name(loaded.question) != by_name(made) for loaded, made in pairs)


def noting_places(stream: Iterable[Loaded], places: dict[str, str]) -> Iterator[Loaded]:
    """Note file and line of each question that can be compared with others."""
    for loaded in stream:
        if len(places) < MOST_COMPARED:
            places[loaded.question.id] = at(loaded.file, loaded.line)
        yield loaded


def corpus_whole(run: Path) -> bool:
    """True if the passages that came with the questions, if any did, are there as they were written."""
    corpus = run / "passages.jsonl"
    if path_exists(corpus):
        return unchanged(corpus)
    # questions collected before the number was noted: the corpus' own metadata tell that there was one
    return not read_meta(run / "questions.jsonl").get("n_passages", path_exists(meta_path(corpus)))


def pick_rule(config: CollectConfig) -> PickRule:
    by_split = {"train": config.train, "dev": config.dev, "test": config.test}
    limits = by_split if config.limit is None else {"all": config.limit}
    drop: dict[Gold, str] = {"none": config.impossible, "hidden": "keep" if config.without_gold else config.hidden}
    return PickRule(limits, config.pick, config.seed, frozenset(gold for gold, rule in drop.items() if rule == "drop"))


if __name__ == "__main__":
    run_script(main, CollectConfig, __doc__)
