"""Training and dev examples, read and checked before any model is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kbtrain.answers.grading import normalise
from kbtrain.errors import UserError, at
from kbtrain.jsonl import read
from kbtrain.prompts.kbm import Key
from kbtrain.provenance import meta_path, read_meta
from kbtrain.records import GateExample, Split

Labels = Literal["hard", "soft"]


@dataclass(frozen=True)
class TrainingData:
    """``unlabelled``: examples left out since they have no label at all; ``partial``: per key, examples without it
    (their other keys are trained)."""

    train: tuple[GateExample, ...]
    dev: tuple[GateExample, ...]
    unlabelled: int
    partial: dict[Key, int]


def target(example: GateExample, key: Key, labels: Labels) -> float | None:
    """The probability of True that an example teaches, in [0, 1]; None where its label is not known."""
    value = getattr(example, key) if labels == "hard" else getattr(example, f"soft_{key}")
    return None if value is None else float(value)


def read_data(train: Path, dev: Path | None, keys: Sequence[Key], labels: Labels) -> TrainingData:
    """Raises :class:`UserError` for what cannot be trained on: no file, a wrong split, a class without examples,
    a training question that also stands in dev."""
    given = _read_split(train, "train")
    held_out = _read_split(dev, "dev") if dev else ()
    check_disjoint(given, held_out, train, dev)
    kept = tuple(e for e in given if any(target(e, key, labels) is not None for key in keys))
    if not kept:
        raise UserError(f"{at(train)}: none of its {len(given)} examples has a {labels} label for {', '.join(keys)}")
    for key in keys:
        _check_classes([target(e, key, labels) for e in kept], key, labels, train)
    partial = Counter(key for e in kept for key in keys if target(e, key, labels) is None)
    return TrainingData(kept, held_out, len(given) - len(kept), dict(partial))


def labelled(examples: Sequence[GateExample], key: Key, labels: Labels) -> list[GateExample]:
    """Examples that have the key's label: the plain questions if there are any, else those with a reference.

    Plain questions are what a gate is asked about before anything is retrieved.
    """
    found = [e for e in examples if target(e, key, labels) is not None]
    return [e for e in found if e.reference is None] or found


def label_rule(path: Path) -> dict[str, Any]:
    """How the labels of a training file were made, from its ``.meta.json``; empty where it has none."""
    return dict(read_meta(path).get("label_rule", {})) if meta_path(path).exists() else {}


def check_dev(data: TrainingData, keys: Sequence[Key], labels: Labels, select: str, dev: Path | None) -> None:
    """Raises :class:`UserError` if the dev examples cannot choose a checkpoint as ``select`` asks."""
    if select == "last":
        return
    instead = "set select: last to keep the last checkpoint"
    if dev is None:
        raise UserError(f"key 'select': '{select}' needs a dev file; give --dev, or {instead}")
    for key in keys:
        values = {getattr(e, key) for e in labelled(data.dev, key, "hard")}
        if not labelled(data.dev, key, labels):
            raise UserError(
                f"{at(dev)}: no example has a {labels} label for '{key}'; label dev questions, or {instead}"
            )
        if select == "auroc" and len(values) < 2:
            raise UserError(f"{at(dev)}: only one class of '{key}', no AUROC; set select: loss, or {instead}")


def check_disjoint(
    train: Sequence[GateExample], dev: Sequence[GateExample], train_path: Path, dev_path: Path | None
) -> None:
    """No question, after normalisation, may stand in both files."""
    held_out = {normalise(e.question): e.id for e in dev}
    both = [e for e in train if normalise(e.question) in held_out]
    if both:
        raise UserError(
            f"{at(train_path)}: example '{both[0].id}' asks the same as '{held_out[normalise(both[0].question)]}' in "
            f"{dev_path} ({len(both)} such); build the splits again so that they are apart"
        )


def _read_split(path: Path, split: Split) -> tuple[GateExample, ...]:
    examples = tuple(read(GateExample, path))
    if not examples:
        raise UserError(f"{at(path)}: no examples in it")
    seen: set[str] = set()
    for example in examples:
        if example.split != split:
            raise UserError(f"{at(path)}: example '{example.id}' is of split '{example.split}', expected '{split}'")
        if example.id in seen:
            raise UserError(f"{at(path)}: id '{example.id}' stands there twice")
        seen.add(example.id)
    return examples


def _check_classes(values: Sequence[float | None], key: Key, labels: Labels, path: Path) -> None:
    known = [value for value in values if value is not None]
    if not known:
        raise UserError(f"{at(path)}: no example has a {labels} label '{key}'; label it, or take it out of keys")
    if len(set(known)) < 2:
        what = f"{bool(known[0])}" if labels == "hard" else f"{known[0]:g}"
        raise UserError(
            f"{at(path)}: key '{key}' is {what} in all {len(known)} labelled examples, so there is nothing to learn; "
            "choose another tau when labelling"
        )
