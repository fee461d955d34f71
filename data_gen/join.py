"""Join the examples of several run folders into one, to train a gate on all of them (KBM trains on MMLU, MLEC, Xiezhi).

Writes OUTPUT/examples/{train,dev,test}.jsonl. The run's name becomes part of each id. A question that is in two splits
of several runs, or asks about an entity of another split, stops the stage (or is dropped from the split that trains or
chooses). So do labels made by different rules or for different models. The label rule, which every gate's card shows,
contains the runs' shares.

Examples:
  kbtrain run join --runs '[runs/mmlu, runs/xiezhi]' --output runs/mix
  kbtrain run join --runs '[runs/mmlu, runs/xiezhi]' --output runs/mix --on-leak drop
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.provenance import check_examples, meta_of, short_name, write_meta
from kbtrain.questions.checks import asked_key
from kbtrain.records import GateExample, Split
from kbtrain.training.data import label_rule

SPLITS: tuple[Split, ...] = ("test", "dev", "train")  # what is evaluated keeps its questions
STEP = "mastery_step"  # of each split, in a label rule
EVIDENCE_FACTS = ("titles", "passages")  # of the passages that answers were drawn with


class JoinConfig(Config):
    runs: tuple[Path, ...] = Field(min_length=2, description="run folders with examples/")
    output: Path = Field(description="run folder that gets the joined examples")
    on_leak: Literal["fail", "drop"] = Field(
        "fail", description="training questions that are also in dev or test, or dev questions in test"
    )
    on_shared_entity: Literal["fail", "drop", "keep"] = Field(
        "fail", description="the same for questions that only share an entity; keep: they are counted in the metadata"
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
    check_examples(*files)
    check_one_model(config.runs)
    rule = common_rule(inputs["train"])
    examples = {split: read_all(paths, config.runs) for split, paths in inputs.items()}
    joined, left_out = separate_splits(examples, config.on_leak, config.on_shared_entity)
    n_train, by_run = len(joined["train"]), Counter(row.id.partition("/")[0] for row in joined["train"])
    shares = {name: round(by_run[name] / max(1, n_train), 4) for name in (run.resolve().name for run in config.runs)}
    extra = {"label_rule": {**rule, "sources": shares}, "left_out": left_out}
    targets = {split: config.output / "examples" / f"{split}.jsonl" for split in SPLITS}
    jsonl.write_each(targets, ((split, row) for split, rows in joined.items() for row in rows))
    for target in targets.values():  # when all are in place: none of an earlier join then fits its metadata
        write_meta(target, stage="join", config=config, inputs=files, extra=extra, started=started)
    sizes = ", ".join(f"{len(joined[split])} {split}" for split in reversed(SPLITS))
    skipped = ", ".join(f"{n} {kind}" for kind, n in left_out.items()) or "nothing"
    shares_text = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    print(f"{sizes} examples; train: {shares_text}; found twice: {skipped} -> {config.output / 'examples'}")


def read_all(paths: Sequence[Path], runs: Sequence[Path]) -> list[GateExample]:
    """One split's examples of all runs, their ids behind the run's name."""
    examples = []
    for path, run in zip(paths, runs, strict=True):
        name = run.resolve().name
        for row in jsonl.read(GateExample, path):
            examples.append(replace(row, id=f"{name}/{row.id}", question_id=f"{name}/{row.question_id}"))
    return examples


def common_rule(paths: Sequence[Path]) -> dict[str, Any]:
    """The rule that made the labels of all files. Raises :class:`UserError` for the first value that differs.

    Facts of one run's answers are no rule: the share that was cut is skipped, a run without Chinese questions notes
    nothing of them, and one without a split has no step of its mastery there. Facts of the
    passages that differ are not noted.
    """
    if joined := next((path for path in paths if "sources" in label_rule(path)), None):
        raise UserError(f"{at(joined)}: made by a join; give the runs that it joined, and join all of them at once")
    first = _without_shares(label_rule(paths[0]))
    for path in paths[1:]:
        other = _without_shares(label_rule(path))
        key = next((key for key in {**first, **other} if not _alike(key, first.get(key), other.get(key))), None)
        ranges = benefit_range(first), benefit_range(other)
        if key == "benefit" and ranges[0] != ranges[1]:
            raise UserError(
                f"{at(path)}: benefit_tail stretched its benefits over the range {ranges[1]}, those of {paths[0]} "
                f"over {ranges[0]}: each run has its own range; build both runs with benefit_tail: 0"
            )
        if key is not None:
            raise UserError(
                f"{at(path)}: its labels were made with {key} {other.get(key)}, those of {paths[0]} with "
                f"{first.get(key)}; label and build both runs alike"
            )
        steps = {STEP: {**other.get(STEP, {}), **first.get(STEP, {})}} if STEP in first else {}
        first = {**first, **{name: value for name, value in other.items() if name not in first}, **steps}
    for fact in EVIDENCE_FACTS:
        if len({label_rule(path).get(fact) for path in paths}) > 1:
            first.pop(fact, None)
    return first


def check_one_model(runs: Sequence[Path]) -> None:
    """Raise :class:`UserError` for labels about answers of different models, as far as the runs' labels note them: a
    gate is about what one model knows. Models are compared by the last part of their names, a folder's or the hub's.
    """
    names = {run: meta_of(run / "labels.jsonl").get("sampling", {}).get("model") for run in runs}
    models = {run: short_name(model) for run, model in names.items() if model}
    first = next(iter(models), None)
    other = next((run for run, model in models.items() if first and model != models[first]), None)
    if first is not None and other is not None:
        raise UserError(
            f"{at(other / 'labels.jsonl')}: labels describe answers of '{models[other]}', those of {first} describe "
            f"'{models[first]}'; a gate is valid for one model: join runs of one model"
        )


def _without_shares(rule: dict[str, Any]) -> dict[str, Any]:
    return {**rule, "cut": {"rule": rule["cut"]["rule"]}} if isinstance(rule.get("cut"), dict) else rule


def _alike(key: str, first: Any, other: Any) -> bool:
    if key in (*EVIDENCE_FACTS, "not_known") or (key == "chinese" and None in (first, other)):
        return True
    if key == STEP and isinstance(first, dict) and isinstance(other, dict):
        return all(first[split] == other[split] for split in first.keys() & other.keys())
    return bool(first == other)


def benefit_range(rule: Mapping[str, Any]) -> list[float]:
    """The benefits whose soft targets are 0 and 1: -1 and 1, or a run's own range (``benefit_tail`` of build.py)."""
    benefit = rule.get("benefit") or {}
    return [float(benefit.get("low", -1.0)), float(benefit.get("high", 1.0))]


def separate_splits(
    splits: Mapping[Split, Sequence[GateExample]],
    on_leak: Literal["fail", "drop"],
    on_shared_entity: Literal["fail", "drop", "keep"],
) -> tuple[dict[Split, list[GateExample]], dict[str, int]]:
    """The examples without questions of a later split (and without its entities), and counts of what was found.

    Raises :class:`UserError` for the first such question unless they may be dropped or kept.
    """
    questions: dict[str, tuple[Split, str]] = {}
    entities: dict[str, tuple[Split, str]] = {}
    apart_rows: dict[Split, list[GateExample]] = {}
    counts: Counter[str] = Counter()
    for split, rows in splits.items():
        apart_rows[split] = []
        run_of: dict[tuple[str, str | None], str] = {}  # of a question with its reference
        for row in rows:
            asked, run = _key(row), row.id.partition("/")[0]
            if run_of.setdefault((asked, row.reference), run) != run:
                counts[f"{split} examples that another run has, too"] += 1
                continue
            same = questions.get(asked)
            near = next((entities[name] for name in row.entities if name in entities), None)
            twin, rule = (same, on_leak) if same else (near, on_shared_entity)
            if twin is not None and rule == "fail":
                what = f"is also in {twin[0]} as" if same else f"asks about an entity of {twin[0]} question"
                key = "on_leak: drop" if same else "on_shared_entity: drop (or keep)"
                raise UserError(f"{split} question '{row.id}' {what} '{twin[1]}'; remove it from one run, or set {key}")
            if twin is not None:
                what = f"stand in {twin[0]}" if same else f"share an entity with {twin[0]}"
                counts[f"{split} examples that {what}{' (kept)' * (rule == 'keep')}"] += 1
            if twin is None or rule == "keep":
                apart_rows[split].append(row)
        questions |= {_key(row): (split, row.id) for row in apart_rows[split]}
        entities |= {name: (split, row.id) for row in apart_rows[split] for name in row.entities}
    return apart_rows, dict(counts)


_OPTION = re.compile(r"\n[A-Z]\. ")  # as prompts show them


def _key(row: GateExample) -> str:
    text, *options = _OPTION.split(row.question)
    return asked_key(text, options)


if __name__ == "__main__":
    run_script(main, JoinConfig, __doc__)
