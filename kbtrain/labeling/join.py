"""Examples of several runs as one set: one label rule for all, no question or entity in two splits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.provenance import meta_of, short_name
from kbtrain.questions.checks import asked_key
from kbtrain.records import GateExample, Split
from kbtrain.training.data import label_rule

STEP = "mastery_step"  # of each split, in a label rule
EVIDENCE_FACTS = ("titles", "passages")  # of the passages that answers were drawn with


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
    first = _without_shares(label_rule(paths[0]))
    for path in paths[1:]:
        other = _without_shares(label_rule(path))
        key = next((key for key in {**first, **other} if not _alike(key, first.get(key), other.get(key))), None)
        ranges = benefit_range(first), benefit_range(other)
        if key == "benefit" and ranges[0] != ranges[1]:
            raise UserError(
                f"{at(path)}: benefit_tail stretched its benefits over the range {ranges[1]}, those of {paths[0]} "
                f"over {ranges[0]}: each run has a range of its own; build both runs with benefit_tail: 0"
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
            f"{at(other / 'labels.jsonl')}: labels about answers of '{models[other]}', those of {first} about "
            f"'{models[first]}'; a gate is about one model: join the runs of one"
        )


def _without_shares(rule: dict[str, Any]) -> dict[str, Any]:
    return {**rule, "cut": {"rule": rule["cut"]["rule"]}} if isinstance(rule.get("cut"), dict) else rule


def _alike(key: str, first: Any, other: Any) -> bool:
    if key in EVIDENCE_FACTS or (key == "chinese" and None in (first, other)):
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
        for row in rows:
            same = questions.get(_key(row))
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
