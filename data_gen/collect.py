"""Collect questions (and, for the atlas, its corpus) into a run folder: questions.jsonl, passages.jsonl.

Every record is checked; a bad one stops the stage with its file, line and field.

Examples:
  python data_gen/collect.py --run runs/demo
  python data_gen/collect.py --run runs/mine --dataset jsonl --path my_questions.jsonl
  python data_gen/collect.py --run runs/small --train 200 --dev 50 --test 100
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, model_validator
from tqdm import tqdm

from kbtrain import jsonl
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, did_you_mean
from kbtrain.provenance import file_sha256, meta_path, read_meta, write_meta
from kbtrain.questions import LOADERS, atlas_passages, load_questions
from kbtrain.questions.atlas import atlas_file
from kbtrain.records import Question


class CollectConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder; it is made if it is not there")
    dataset: str = Field("atlas", description="atlas (embedded) or jsonl")
    path: Path | None = Field(None, description="the data set's file; the atlas needs none")
    train: int | None = Field(None, ge=0, description="take the first so many training questions; null: all")
    dev: int | None = Field(None, ge=0, description="the same for dev")
    test: int | None = Field(None, ge=0, description="the same for test")

    @model_validator(mode="after")
    def _known(self) -> CollectConfig:
        if self.dataset not in LOADERS:
            raise ValueError(f"unknown data set '{self.dataset}'; {did_you_mean(self.dataset, LOADERS)}")
        return self


def main(config: CollectConfig) -> None:
    started = time.time()
    target = config.run / "questions.jsonl"
    source = config.path or atlas_file("questions")
    if finished(config, source, target):
        print(f"{target} is there already, made with the same options from the same data")
        return
    counts: Counter[str] = Counter()
    jsonl.write(target, tqdm(picked(config, counts), desc="collect", unit=" questions", total=total(source)))
    if not counts:
        target.unlink()
        raise UserError(f"{source}: no questions left to collect")
    if config.dataset == "atlas":
        passages = config.run / "passages.jsonl"
        jsonl.write(passages, atlas_passages())
        write_meta(passages, stage="collect", config=options(config), inputs=[atlas_file("passages")], started=started)
    # last: with its meta data in place the stage counts as done
    extra = {"splits": dict(counts)}
    write_meta(target, stage="collect", config=options(config), inputs=[source], extra=extra, started=started)
    per_split = ", ".join(f"{split} {counts[split]}" for split in ("train", "dev", "test"))
    print(f"{counts.total()} questions ({per_split}) -> {target}")


def picked(config: CollectConfig, counts: Counter[str]) -> Iterator[Question]:
    """The first questions of each split, up to its limit."""
    limits = {"train": config.train, "dev": config.dev, "test": config.test}
    for question in load_questions(config.dataset, config.path):
        limit = limits[question.split]
        if limit is None or counts[question.split] < limit:
            counts[question.split] += 1
            yield question


def total(source: Path) -> int:
    return sum(1 for _ in jsonl.lines(source))


def options(config: CollectConfig) -> dict[str, object]:
    return config.model_dump(mode="json")


def finished(config: CollectConfig, source: Path, target: Path) -> bool:
    """Whether an earlier run with the same options and data left the whole file."""
    if not (target.exists() and meta_path(target).exists()):
        return False
    meta = read_meta(target)
    return meta["config"] == options(config) and file_sha256(source) in meta["inputs"].values()


if __name__ == "__main__":
    run_script(main, CollectConfig, __doc__)
