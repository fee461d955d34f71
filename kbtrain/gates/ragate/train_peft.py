"""Labelled turns for RAGate-PEFT, and their rows: loss at the one token that says True or False."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kbtrain.errors import UserError, at
from kbtrain.gates.encoder.input import Example
from kbtrain.gates.ragate.peft import TurnPrompts
from kbtrain.gates.true_false.form import Encoded
from kbtrain.prompts.ragate_peft_prompts import PeftFeature
from kbtrain.records import TurnExample
from kbtrain.training.classifier_data import ClassifierData, read_classifier_data
from kbtrain.training.rows import IGNORE, Row, make_row

_FIELDS: dict[PeftFeature, str] = {
    "resp": "response",
    "syn-resp": "synthetic_response",
    "ner": "entities",
    "know": "knowledge",
    "source": "source",
}


def read_turns(train: Path, dev: Path, features: Sequence[PeftFeature]) -> ClassifierData:
    """Both splits. Raises :class:`UserError` for questions, a missing feature, one class, or dialogues in both."""
    data = read_classifier_data(train, dev)
    for rows, path in ((data.train, train), (data.dev, dev)):
        check_turns([row.example for row in rows], path, features)
    return data


def check_turns(examples: Sequence[Example], path: Path, features: Sequence[PeftFeature]) -> list[TurnExample]:
    """The examples, all of them turns with these features. Raises :class:`UserError` naming the first that is not."""
    turns = []
    for example in examples:
        if not isinstance(example, TurnExample):
            raise UserError(f"{at(path)}: questions, where dialogue turns are expected (data_gen/collect_turns.py)")
        for name in features:
            if getattr(example, _FIELDS[name]) is None:
                raise UserError(
                    f"{at(path)}: example '{example.id}' has no '{name}'; make it first "
                    "(data_gen/turn_features.py), or take it out of features"
                )
        turns.append(example)
    return turns


def turns_of(rows: Sequence[object]) -> list[TurnExample]:
    """The turns of labelled rows."""
    found = [getattr(row, "example", None) for row in rows]
    return [turn for turn in found if isinstance(turn, TurnExample)]


def turn_row(prompts: TurnPrompts, turn: TurnExample) -> Row:
    """The row ends with the token that decides; nothing after it is fed in or learnt."""
    return answer_only(prompts.encode(turn), bool(turn.label))


def answer_only(encoded: Encoded, need: bool) -> Row:
    """The prompt and the answer up to its first differing token, which alone has a label."""
    row = make_row(encoded, [float(need)])
    place = encoded.tree.places[()].position
    end = len(encoded.prompt) + place + 1
    # transformers counts a step's labels from the second on, as if they were yet to be shifted: one goes before
    return Row(row.ids[:end], (IGNORE, row.labels[place]), (0, row.other[place]), (1.0, row.weight[place]), row.cut)
