"""Join the examples of several run folders into one, to train a gate on all of them (KBM trains on MMLU, MLEC, Xiezhi).

Writes OUTPUT/examples/{train,dev,test}.jsonl. Ids get the run's name before them. A question that stands in two splits,
of whatever runs, or asks about an entity of another split, stops the stage (or is dropped from the split that trains or
chooses), and so do labels made by different rules. The shares of the runs stand in the label rule, which every gate's
card tells.

Examples:
  python data_gen/join.py --runs '[runs/mmlu, runs/xiezhi]' --output runs/mix
  python data_gen/join.py --runs '[runs/mmlu, runs/xiezhi]' --output runs/mix --on-leak drop
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from kbtrain import jsonl
from kbtrain.answers.grading import normalise
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, at
from kbtrain.provenance import check_unchanged, write_meta
from kbtrain.records import GateExample, Split
from kbtrain.training.data import label_rule

SPLITS: tuple[Split, ...] = ("test", "dev", "train")  # what is evaluated keeps its questions


class JoinConfig(Config):
    runs: tuple[Path, ...] = Field(min_length=2, description="run folders with examples/")
    output: Path = Field(description="run folder that gets the joined examples")
    on_leak: Literal["fail", "drop"] = Field("fail", description="training questions in dev or test, dev in test")
    on_shared_entity: Literal["fail", "drop", "keep"] = Field(
        "fail", description="the same of questions that share an entity alone; keep: they are counted in the meta data"
    )

    @model_validator(mode="after")
    def _apart(self) -> JoinConfig:
        names = [run.resolve().name for run in self.runs]
        twice = next((name for name, n in Counter(names).items() if n > 1), None)
        if twice is not None:
            raise ValueError(f"runs: two folders are called '{twice}', so their questions' ids would clash; rename one")
        if self.output.resolve() in [run.resolve() for run in self.runs]:
            raise ValueError("output: is one of the runs; name another folder")
        return self

    def writes(self) -> tuple[Path, ...]:
        return (self.output / "examples",)


def main(config: JoinConfig) -> None:
    """Read, compare across all runs, write one file for each split."""
    started = time.monotonic()
    inputs = {split: [run / "examples" / f"{split}.jsonl" for run in config.runs] for split in SPLITS}
    files = [path for paths in inputs.values() for path in paths]
    check_unchanged(*files)
    rule = common_rule(inputs["train"])
    joined, left_out = apart({split: read_all(paths, config.runs) for split, paths in inputs.items()}, config.on_leak,
                             config.on_shared_entity)  # fmt: skip
    shares = shares_of(joined["train"], config.runs)
    extra = {"label_rule": {**rule, "sources": shares}, "left_out": left_out}
    for split, rows in joined.items():
        out = config.output / "examples" / f"{split}.jsonl"
        jsonl.write(out, rows)
        settings = config.model_dump(mode="json")
        write_meta(out, stage="join", config=settings, inputs=files, extra=extra, started=started)
    made = ", ".join(f"{len(joined[split])} {split}" for split in reversed(SPLITS))
    lost = ", ".join(f"{n} {what}" for what, n in left_out.items()) or "nothing"
    of = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    print(f"{made} examples; train: {of}; found in two splits: {lost} -> {config.output / 'examples'}")


def read_all(paths: Sequence[Path], runs: Sequence[Path]) -> list[GateExample]:
    """One split's examples of all runs, their ids behind the run's name."""
    found = []
    for path, run in zip(paths, runs, strict=True):
        name = run.resolve().name
        for row in jsonl.read(GateExample, path):
            found.append(replace(row, id=f"{name}/{row.id}", question_id=f"{name}/{row.question_id}"))
    return found


def common_rule(paths: Sequence[Path]) -> dict[str, Any]:
    """The rule that made the labels of all files. Raises :class:`UserError` for the first value that differs."""
    first = label_rule(paths[0])
    for path in paths[1:]:
        other = label_rule(path)
        key = next((key for key in {**first, **other} if first.get(key) != other.get(key)), None)
        if key == "benefit" and ends(first) != ends(other):
            raise UserError(
                f"{at(path)}: benefit_tail stretched its benefits over the range {ends(other)}, those of {paths[0]} "
                f"over {ends(first)}: each run has a range of its own; build both runs with benefit_tail: 0"
            )
        if key is not None:
            raise UserError(
                f"{at(path)}: its labels were made with {key} {other.get(key)}, those of {paths[0]} with "
                f"{first.get(key)}; label and build both runs alike"
            )
    return first


def ends(rule: Mapping[str, Any]) -> list[float]:
    """The benefits whose soft targets are 0 and 1: -1 and 1, or a run's own range (``benefit_tail`` of build.py)."""
    benefit = rule.get("benefit") or {}
    return [float(benefit.get("low", -1.0)), float(benefit.get("high", 1.0))]


def apart(
    splits: Mapping[Split, Sequence[GateExample]],
    on_leak: Literal["fail", "drop"],
    on_shared_entity: Literal["fail", "drop", "keep"],
) -> tuple[dict[Split, list[GateExample]], dict[str, int]]:
    """The examples without questions of a later split (and without its entities), and counts of what was found.

    Raises :class:`UserError` for the first such question unless they may be dropped or kept.
    """
    asked: dict[str, tuple[Split, str]] = {}
    entities: dict[str, tuple[Split, str]] = {}
    kept: dict[Split, list[GateExample]] = {}
    found: Counter[str] = Counter()
    for split, rows in splits.items():
        kept[split] = []
        for row in rows:
            same = asked.get(normalise(row.question))
            near = next((entities[name] for name in row.entities if name in entities), None)
            seen, rule = (same, on_leak) if same else (near, on_shared_entity)
            if seen is not None and rule == "fail":
                what = f"also stands in {seen[0]} as" if same else f"asks about an entity of {seen[0]} question"
                key = "on_leak: drop" if same else "on_shared_entity: drop (or keep)"
                raise UserError(f"{split} question '{row.id}' {what} '{seen[1]}'; take it out of one run, or set {key}")
            if seen is not None:
                what = f"stand in {seen[0]}" if same else f"share an entity with {seen[0]}"
                found[f"{split} examples that {what}{' (kept)' * (rule == 'keep')}"] += 1
            if seen is None or rule == "keep":
                kept[split].append(row)
        asked |= {normalise(row.question): (split, row.id) for row in kept[split]}
        entities |= {name: (split, row.id) for row in kept[split] for name in row.entities}
    return kept, dict(found)


def shares_of(rows: Sequence[GateExample], runs: Sequence[Path]) -> dict[str, float]:
    """Each run's share of the training examples."""
    counts = Counter(row.id.partition("/")[0] for row in rows)
    return {run.resolve().name: round(counts[run.resolve().name] / max(1, len(rows)), 4) for run in runs}


if __name__ == "__main__":
    run_script(main, JoinConfig, __doc__)
