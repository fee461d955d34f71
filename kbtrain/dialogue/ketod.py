"""KETOD (Chen et al., 2022): SGD dialogues whose system turns people enriched with knowledge, or left as they were.

Three layouts: as released (annotations to be joined with SGD by dialogue id), as joined by KETOD's own script, and one
joined dialogue a line without snippets.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from kbtrain.dialogue.base import Dialogue, Turn, dialogue_place, load_list, parsed, split_files
from kbtrain.dialogue.sgd import (
    NativeDialogue,
    NativeTurn,
    actions_of,
    alternating,
    native_dialogues,
    sgd_files,
    utterance_of,
)
from kbtrain.errors import UserError
from kbtrain.io.jsonl import lines, value
from kbtrain.records import Snippet, Split


class _Released(BaseModel):
    """A dialogue of the release: its turns hold annotations only, in the order of SGD's."""

    dialogue_id: str
    turns: list[dict[str, Any]]
    entity_passages_sents: dict[str, list[list[Any]]] = {}


def ketod_joined(path: Path, split: Split | None = None) -> Iterator[Dialogue]:
    """Files train.json, dev.json and test.json as KETOD's script writes them, or one of them."""
    for name, file in split_files(path, ".json", split):
        for number, data in enumerate(load_list(file), 1):
            place = dialogue_place(data, number, file)
            yield _dialogue(parsed(NativeDialogue, data, place), name, place)


def ketod_lines(path: Path, split: Split | None = None) -> Iterator[Dialogue]:
    """Files train.jsonl, dev.jsonl and test.jsonl: one joined dialogue a line; or one of them."""
    for name, file in split_files(path, ".jsonl", split):
        for number, line in lines(file):
            data = value(line, file, number)
            place = dialogue_place(data, number, file)
            yield _dialogue(parsed(NativeDialogue, data, place), name, place)


def ketod_released(path: Path, sgd: Path, split: Split | None = None) -> Iterator[Dialogue]:
    """Files train_ketod.json, dev_ketod.json and test_ketod.json, joined with the folder of SGD.

    A dialogue is looked for in SGD's split of the same name, then in its train split (as KETOD's script does). Raises
    :class:`UserError` naming the dialogue if it is in neither, or has another number of turns there.
    """
    by_id = functools.cache(lambda name: _by_id(sgd, name))
    for name, file in split_files(path, "_ketod.json", split):
        for number, data in enumerate(load_list(file), 1):
            place = dialogue_place(data, number, file)
            released = parsed(_Released, data, place)
            base = by_id(name).get(released.dialogue_id)
            if base is None and (sgd / "train").is_dir():
                base = by_id("train").get(released.dialogue_id)
            if base is None:
                raise UserError(f"{place}: not in {sgd} (neither in {name} nor in train)")
            yield _dialogue(_join(released, base, place), name, place)


def _by_id(sgd: Path, split: Split) -> dict[str, NativeDialogue]:
    dialogues: dict[str, NativeDialogue] = {}
    for _, files in sgd_files(sgd, split):
        for place, dialogue in native_dialogues(files):
            if dialogue.dialogue_id in dialogues:
                raise UserError(f"{place}: duplicate in {sgd}; delete one")
            dialogues[dialogue.dialogue_id] = dialogue
    return dialogues


def _join(released: _Released, base: NativeDialogue, place: str) -> NativeDialogue:
    if len(released.turns) != len(base.turns):
        raise UserError(f"{place}: {len(released.turns)} annotated turns, but SGD has {len(base.turns)}")
    turns = [
        parsed(NativeTurn, turn.model_dump() | dict(notes), f"{place}, turn {i}")
        for i, (turn, notes) in enumerate(zip(base.turns, released.turns, strict=True))
    ]
    return NativeDialogue(
        dialogue_id=released.dialogue_id, turns=turns, entity_passages_sents=released.entity_passages_sents
    )


def _dialogue(native: NativeDialogue, split: Split, place: str) -> Dialogue:
    alternating(native.turns, place)
    snippets = {snippet.id: snippet for snippet in _snippets(native, place)}
    turns = tuple(_turn(turn, i, native.dialogue_id, snippets, place) for i, turn in enumerate(native.turns))
    return Dialogue(native.dialogue_id, split, turns, place, tuple(snippets.values()))


def _turn(native: NativeTurn, i: int, dialogue: str, snippets: Mapping[str, Snippet], place: str) -> Turn:
    if native.enrich is None and native.speaker == "SYSTEM":
        raise UserError(f"{place}: turn {i} has no 'enrich'; it must be true or false")
    gold = tuple(f"{dialogue}/{number}" for number in native.kg_snippets)
    unknown = next((name for name in gold if name not in snippets), None)
    if unknown is not None:
        number = unknown.rpartition("/")[2]
        raise UserError(f"{place}: turn {i} names snippet {number}, which entity_passages_sents does not have")
    return Turn(utterance_of(native, place), native.enrich, native.enriched_utter, gold, actions_of(native))


def _snippets(native: NativeDialogue, place: str) -> Iterator[Snippet]:
    """Sentences of the passages found for the dialogue's entities: ``{query: [[title, [1, sentence], ...], ...]}``."""
    numbers: set[int] = set()
    for query, passages in native.entity_passages_sents.items():
        for passage in passages:
            if not passage or not isinstance(passage[0], str):
                raise UserError(f"{place}: a passage of '{query}' does not begin with its title")
            for numbered in passage[1:]:
                if not (isinstance(numbered, list) and len(numbered) == 2 and isinstance(numbered[0], int)):
                    raise UserError(f"{place}: a sentence of '{passage[0]}' is not a pair [number, text]")
                if numbered[0] in numbers:
                    raise UserError(f"{place}: duplicate snippet {numbered[0]}")
                numbers.add(numbered[0])
                name = f"{native.dialogue_id}/{numbered[0]}"
                yield Snippet(name, native.dialogue_id, passage[0], str(numbered[1]))
