"""Join the examples of several run folders into one, to train a gate on all of them (KBM trains on MMLU, MLEC, Xiezhi).

Writes OUTPUT/examples/{train,dev,test}.jsonl. Ids get the run's name before them. A question that stands in two splits,
of several runs, or asks about an entity of another split, stops the stage (or is dropped from the split that trains or
chooses), and so do labels made by different rules or about different models. The shares of the runs stand in the label
rule, which every gate's card tells.

Examples:
  kbtrain run join --runs '[runs/mmlu, runs/xiezhi]' --output runs/mix
  kbtrain run join --runs '[runs/mmlu, runs/xiezhi]' --output runs/mix --on-leak drop
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from kbtrain.config import Config, run_script
from kbtrain.io import jsonl
from kbtrain.io.provenance import check_unchanged, write_meta
from kbtrain.labeling.join import check_one_model, common_rule, read_all, separate_splits
from kbtrain.records import Split

SPLITS: tuple[Split, ...] = ("test", "dev", "train")  # what is evaluated keeps its questions


class JoinConfig(Config):
    runs: tuple[Path, ...] = Field(min_length=2, description="run folders with examples/")
    output: Path = Field(description="run folder that gets the joined examples")
    on_leak: Literal["fail", "drop"] = Field(
        "fail", description="training questions that are also in dev or test, or dev questions in test"
    )
    on_shared_entity: Literal["fail", "drop", "keep"] = Field(
        "fail", description="the same for questions that only share an entity; keep: they are counted in the meta data"
    )

    @model_validator(mode="after")
    def _apart(self) -> JoinConfig:
        places = [os.path.realpath(run) for run in self.runs]  # Path.resolve() raises at links that lead in a circle
        names = [os.path.basename(place) for place in places]
        twice = next((name for name, n in Counter(names).items() if n > 1), None)
        if twice is not None:
            raise ValueError(
                f"key 'runs': two folders are called '{twice}', so their questions' ids would clash; rename one"
            )
        if os.path.realpath(self.output) in places:
            raise ValueError("key 'output': is one of the runs; name another folder")
        return self

    def writes(self) -> tuple[Path, ...]:
        return (self.output / "examples",)


def main(config: JoinConfig) -> None:
    started = time.monotonic()
    inputs = {split: [run / "examples" / f"{split}.jsonl" for run in config.runs] for split in SPLITS}
    files = [path for paths in inputs.values() for path in paths]
    check_unchanged(*files)
    check_one_model(config.runs)
    rule = common_rule(inputs["train"])
    examples = {split: read_all(paths, config.runs) for split, paths in inputs.items()}
    joined, left_out = separate_splits(examples, config.on_leak, config.on_shared_entity)
    n_train, by_run = len(joined["train"]), Counter(row.id.partition("/")[0] for row in joined["train"])
    shares = {name: round(by_run[name] / max(1, n_train), 4) for name in (run.resolve().name for run in config.runs)}
    extra = {"label_rule": {**rule, "sources": shares}, "left_out": left_out}
    for split, rows in joined.items():
        target = config.output / "examples" / f"{split}.jsonl"
        jsonl.write(target, rows)
        write_meta(target, stage="join", config=config, inputs=files, extra=extra, started=started)
    sizes = ", ".join(f"{len(joined[split])} {split}" for split in reversed(SPLITS))
    skipped = ", ".join(f"{n} {kind}" for kind, n in left_out.items()) or "nothing"
    shares_text = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    print(f"{sizes} examples; train: {shares_text}; found in two splits: {skipped} -> {config.output / 'examples'}")


if __name__ == "__main__":
    run_script(main, JoinConfig, __doc__)
