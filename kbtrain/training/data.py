"""Training and dev examples of KBMs and of gates that classify: read, checked, and weighed by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from kbtrain.answers.words import normalise
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.jsonl import lines, read
from kbtrain.io.provenance import meta_of, meta_path
from kbtrain.prompts.kbm import Key
from kbtrain.prompts.own import OwnPrompts
from kbtrain.records import NEEDS_RETRIEVAL, OF_QUESTION, Example, GateExample, Split, Target, TurnExample

Labels = Literal["hard", "soft"]
E = TypeVar("E", GateExample, TurnExample)


@dataclass(frozen=True)
class TrainingData:
    """``unlabelled``: examples skipped since they have no label at all; ``partial``: per key, examples without it
    (their other keys are trained)."""

    train: tuple[GateExample, ...]
    dev: tuple[GateExample, ...]
    unlabelled: int
    partial: dict[Target, int]


def target(example: GateExample, key: Target, labels: Labels) -> float | None:
    """The probability of True that an example teaches, in [0, 1]; None where its label is not known.

    Of a fact about the question has no soft label.
    """
    value = getattr(example, key) if labels == "hard" or key in OF_QUESTION else getattr(example, f"soft_{key}")
    return None if value is None else float(value)


def read_data(train: Path, dev: Path | None, keys: Sequence[Target], labels: Labels) -> TrainingData:
    """Training and dev examples. Raises :class:`UserError` for what cannot be trained on: no file, a wrong split, a
    class without examples, a training question that is also in dev."""
    examples = _read_split(train, "train")
    held_out = _read_split(dev, "dev") if dev else ()
    check_disjoint(examples, held_out, train, dev)
    labelled = tuple(e for e in examples if any(target(e, key, labels) is not None for key in keys))
    if not labelled:
        raise UserError(f"{at(train)}: none of its {len(examples)} examples has a {labels} label for {', '.join(keys)}")
    for key in keys:
        _check_classes([target(e, key, labels) for e in labelled], key, labels, train)
    partial = Counter(key for e in labelled for key in keys if target(e, key, labels) is None)
    return TrainingData(labelled, held_out, len(examples) - len(labelled), dict(partial))


def labelled_examples(examples: Sequence[GateExample], key: Target, labels: Labels) -> list[GateExample]:
    """Examples that have the key's label: the plain questions if there are any, else those with a reference.

    Plain questions are what a gate is asked about before anything is retrieved.
    """
    labelled = [e for e in examples if target(e, key, labels) is not None]
    return [e for e in labelled if e.reference is None] or labelled


def label_rule(path: Path) -> dict[str, Any]:
    """Rule by which the labels of a training file were made, from its ``.meta.json``; empty where it has none."""
    return dict(meta_of(path).get("label_rule", {}))


def own_prompts(rule: Mapping[str, Any], path: Path) -> OwnPrompts | None:
    """Own templates of the rule noted beside ``path``. Raises :class:`UserError` for templates changed there."""
    try:
        return OwnPrompts.from_record(rule.get("own_prompts"))
    except UserError as error:
        raise UserError(f"{at(meta_path(path))}: {error}") from None


def check_dev(data: TrainingData, keys: Sequence[Target], labels: Labels, select: str, dev: Path | None) -> None:
    """Raises :class:`UserError` if the dev examples cannot choose a checkpoint as ``select`` asks."""
    if select == "last":
        return
    instead = "set select: last to keep the last checkpoint"
    if dev is None:
        raise UserError(f"key 'select': '{select}' needs a dev file; give --dev, or {instead}")
    for key in keys:
        values = {getattr(e, key) for e in labelled_examples(data.dev, key, "hard")}
        if not labelled_examples(data.dev, key, labels):
            raise UserError(
                f"{at(dev)}: no example has a {labels} label for '{key}'; label dev questions, or {instead}"
            )
        if select == "auroc" and len(values) < 2:
            raise UserError(f"{at(dev)}: only one class of '{key}', no AUROC; set select: loss, or {instead}")


def check_disjoint(
    train: Sequence[GateExample], dev: Sequence[GateExample], train_path: Path, dev_path: Path | None
) -> None:
    """Raise :class:`UserError` for a question that, after normalisation, is in both files."""
    held_out = {normalise(e.question): e.id for e in dev}
    both = [e for e in train if normalise(e.question) in held_out]
    if both:
        twin = held_out[normalise(both[0].question)]
        raise UserError(
            f"{at(train_path)}: example '{both[0].id}' asks the same as '{twin}' in {dev_path} ({len(both)} such); "
            "build the splits again so that they are apart"
        )


def _read_split(path: Path, split: Split) -> tuple[GateExample, ...]:
    if not (examples := tuple(read(GateExample, path))):
        raise UserError(f"{at(path)}: no examples in it")
    for example in examples:
        if example.split != split:
            raise UserError(f"{at(path)}: example '{example.id}' is of split '{example.split}', expected '{split}'")
    _check_ids(examples, path)
    return examples


def _check_ids(examples: Sequence[Example], path: Path) -> None:
    (name, count), *_ = Counter(example.id for example in examples).most_common(1)
    if count > 1:
        raise UserError(f"{at(path)}: duplicate id '{name}'")


def _check_classes(values: Sequence[float | None], key: Target, labels: Labels, path: Path) -> None:
    labelled = [value for value in values if value is not None]
    if not labelled:
        raise UserError(f"{at(path)}: no example has a {labels} label '{key}'; label it, or remove it from keys")
    if len(set(labelled)) < 2:
        what = f"{bool(labelled[0])}" if labels == "hard" else f"{labelled[0]:g}"
        raise UserError(
            f"{at(path)}: key '{key}' is {what} in all {len(labelled)} labelled examples, so there is nothing to "
            "learn; choose another tau when labelling"
        )


@dataclass(frozen=True)
class Labelled:
    """An example with the probability that it needs retrieval, to be taught (0 or 1: a hard label); ``hard``: its hard
    label, where it has one, too."""

    example: Example
    need: float
    hard: bool | None = None

    @property
    def is_needed(self) -> bool:
        """True if retrieval is needed by the hard label, of which dev's figures and thresholds are: a weak model's soft
        ones may all lie on one side of 1/2. Without one, by the more probable side."""
        return self.need > 0.5 if self.hard is None else self.hard


@dataclass(frozen=True)
class InputTokens:
    """Token ids of one example as a classifier reads them; ``segments``: 0 or 1 each; ``other``: those of a text that
    is read on its own, as knowledge is; ``cut``: turns or tokens lost."""

    ids: tuple[int, ...]
    segments: tuple[int, ...] = ()
    other: tuple[int, ...] = ()
    cut: int = 0


@dataclass(frozen=True)
class ClassifierData:
    """``unlabelled``: examples of each split skipped, since nothing is known of them."""

    train: tuple[Labelled, ...]
    dev: tuple[Labelled, ...]
    unlabelled: dict[str, int]


def need(example: Example, key: Key = "mastery", labels: Labels = "hard") -> float | None:
    """1 where retrieval is needed: an enriched turn, a question not mastered, an answer that it helps."""
    if isinstance(example, TurnExample):
        return None if example.label is None else float(example.label)
    value = target(example, key, labels)
    return value if value is None or key in NEEDS_RETRIEVAL else 1 - value


def read_examples(path: Path) -> list[Example]:
    """All examples of a file, turns or questions by its first line. Raises :class:`UserError` if it is empty."""
    number, first = next(iter(lines(path)), (1, "{}"))
    data = jsonl.value(first, path, number)
    turns = isinstance(data, dict) and "dialogue_id" in data
    examples: list[Example] = [*read(TurnExample, path)] if turns else [*read(GateExample, path)]
    if not examples:
        raise UserError(f"{at(path)}: no examples in it")
    return examples


def read_labelled(path: Path, split: Split, key: Key, labels: Labels) -> tuple[list[Labelled], int]:
    """The labelled examples of one split, and how many have no label. Other splits of the file are passed over.

    Raises :class:`UserError` for a split without examples or labels, and for a duplicate id.
    """
    examples = [example for example in read_examples(path) if example.split == split]
    if not examples:
        raise UserError(f"{at(path)}: no example of split '{split}' in it")
    _check_ids(examples, path)
    labelled = [
        Labelled(example, value, None if (hard := need(example, key)) is None else hard > 0.5)
        for example in examples
        if (value := need(example, key, labels)) is not None
    ]
    if not labelled:
        raise UserError(f"{at(path)}: no {split} example has a {labels} label for '{key}'")
    return labelled, len(examples) - len(labelled)


def labelled_questions(path: Path, split: Split, key: Key, labels: Labels) -> list[Labelled]:
    """The plain questions of one split that have the key's label. Raises :class:`UserError` without any."""
    rows, _ = read_labelled(path, split, key, labels)
    questions = [row for row in rows if isinstance(row.example, GateExample) and row.example.reference is None]
    if not questions:
        raise UserError(f"{at(path)}: no plain {split} question has a {labels} label '{key}'")
    return questions


def read_classifier_data(train: Path, dev: Path, key: Key = "mastery", labels: Labels = "hard") -> ClassifierData:
    """Both splits (of two files, or of one), apart. Raises :class:`UserError` if a class is missing or the
    splits overlap."""
    train_rows, without = read_labelled(train, "train", key, labels)
    held_out, dev_without = read_labelled(dev, "dev", key, labels)
    check_apart([row.example for row in train_rows], [row.example for row in held_out], train, dev)
    taught, measured = [row.need for row in train_rows], [row.is_needed for row in held_out]
    for values, path, split in ((taught, train, "train"), (measured, dev, "dev")):
        if len(set(values)) < 2:
            raise UserError(
                f"{at(path)}: all {len(values)} {split} examples are of one class; nothing to learn or choose"
            )
    return ClassifierData(tuple(train_rows), tuple(held_out), {"train": without, "dev": dev_without})


def examples_of(kind: type[E], rows: Iterable[Labelled]) -> list[E]:
    """The questions, or the turns, among labelled examples."""
    return [row.example for row in rows if isinstance(row.example, kind)]


def check_apart(train: Sequence[Example], others: Sequence[Example], path: Path, of_others: Path | None) -> None:
    """Raise :class:`UserError` for a question, or a dialogue, in both splits."""
    asked, held_out = ([e for e in rows if isinstance(e, GateExample)] for rows in (train, others))
    check_disjoint(asked, held_out, path, of_others)
    split_of = {turn.dialogue_id: turn.split for turn in others if isinstance(turn, TurnExample)}
    dialogues = [turn.dialogue_id for turn in train if isinstance(turn, TurnExample)]
    if shared := next((dialogue for dialogue in dialogues if dialogue in split_of), None):
        raise UserError(f"{at(path)}: dialogue '{shared}' is in train and in {split_of[shared]}")


def class_weights(rows: Sequence[Labelled], strength: float = 1.0) -> tuple[float, float]:
    """(negative, positive) weights, inverse to the classes' shares to the power ``strength``, summing to 1.

    ``strength`` 1 gives both classes the same say (RAGate's [0.06, 0.94] for 6 % of positives), 0 none.
    """
    share = sum(row.need for row in rows) / len(rows)
    negative, positive = share**strength, (1 - share) ** strength
    return negative / (negative + positive), positive / (negative + positive)


def common_acts(rows: Sequence[Labelled], least: float = 0.01) -> tuple[str, ...]:
    """Acts of at least this share of the training turns (OFFER, REQUEST, ...): targets beside the label.

    An encoder that learns to foresee what the system will do next learns from every turn, not from the few enriched
    ones alone; when it scores it reads what was said before the turn, and nothing else.
    """
    counts = Counter(act for row in rows if isinstance(row.example, TurnExample) for act in row.example.response_acts)
    return tuple(sorted(act for act, count in counts.items() if count >= least * len(rows)))


def act_targets(example: Example, acts: Sequence[str]) -> tuple[float, ...] | None:
    """1 for each act that the turn does; None where nothing is known of it."""
    if isinstance(example, TurnExample) and example.response_acts:
        return tuple(float(act in example.response_acts) for act in acts)
    return None
