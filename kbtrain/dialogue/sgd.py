"""Schema-Guided Dialogue (SGD): folders train, dev and test with files dialogues_001.json, ...; no labels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from kbtrain.dialogue.base import Dialogue, Turn, dialogue_place, load_list, parsed, split_of
from kbtrain.errors import UserError, at
from kbtrain.records import Entity, Speaker, Split, Utterance

SOURCE = "sgd"


class Action(BaseModel):
    """A dialogue act of a turn, e.g. OFFER, of a slot and its values where it has them."""

    act: str
    slot: str = ""
    values: list[str] = []


class Slot(BaseModel):
    """Position of a slot's value in the utterance."""

    slot: str
    start: int
    exclusive_end: int


class Frame(BaseModel):
    """A turn's annotation for one service."""

    service: str = ""
    actions: list[Action] = []
    slots: list[Slot] = []


class NativeTurn(BaseModel):
    """A turn in SGD's layout; the last three fields are KETOD's. Other fields are ignored."""

    speaker: Speaker
    utterance: str
    frames: list[Frame] = []
    enrich: bool | None = None
    enriched_utter: str | None = None
    kg_snippets: list[int] = []


class NativeDialogue(BaseModel):
    """A dialogue in SGD's layout, with KETOD's passages if it has them."""

    dialogue_id: str
    turns: list[NativeTurn]
    entity_passages_sents: dict[str, list[list[Any]]] = {}


def utterance_of(turn: NativeTurn, place: str) -> Utterance:
    """The utterance of a turn. Raises :class:`UserError` for a slot outside the text."""
    entities = []
    for frame in turn.frames:
        for slot in frame.slots:
            if not 0 <= slot.start < slot.exclusive_end <= len(turn.utterance):
                span = f"{slot.start} to {slot.exclusive_end}"
                raise UserError(f"{place}: slot '{slot.slot}' at {span}, outside '{turn.utterance:.40}'")
            entities.append(Entity(turn.utterance[slot.start : slot.exclusive_end], slot.slot, SOURCE))
    services = dict.fromkeys(frame.service for frame in turn.frames if frame.service)
    acts = dict.fromkeys(action.act for frame in turn.frames for action in frame.actions)
    return Utterance(turn.speaker, turn.utterance, tuple(services), tuple(acts), tuple(dict.fromkeys(entities)))


def actions_of(turn: NativeTurn) -> tuple[str, ...]:
    """The turn's actions with slots and values, each once: "OFFER restaurant_name = Sino"."""
    actions = (action for frame in turn.frames for action in frame.actions)
    return tuple(dict.fromkeys(_action_text(action) for action in actions))


def _action_text(action: Action) -> str:
    values = f" = {' / '.join(action.values)}" if action.values else ""
    return f"{action.act} {action.slot}{values}".strip()


def alternating(turns: list[NativeTurn], place: str) -> None:
    """Check that speakers alternate as in SGD; two in a row mean that a turn is missing or repeated."""
    for i, (turn, following) in enumerate(itertools.pairwise(turns)):
        if turn.speaker == following.speaker:
            raise UserError(f"{place}: turns {i} and {i + 1} are both by {turn.speaker}: one is missing or doubled")


def native_dialogues(files: list[Path]) -> Iterator[tuple[str, NativeDialogue]]:
    """Stream (where, dialogue) of SGD files."""
    for path in files:
        for number, data in enumerate(load_list(path), 1):
            place = dialogue_place(data, number, path)
            dialogue = parsed(NativeDialogue, data, place)
            alternating(dialogue.turns, place)
            yield place, dialogue


def sgd_dialogues(path: Path, split: Split | None = None) -> Iterator[Dialogue]:
    """A folder with the folders train, dev and test; or one file (or folder of files), whose split must be given."""
    for name, files in sgd_files(path, split):
        for place, native in native_dialogues(files):
            turns = tuple(Turn(utterance_of(turn, place), actions=actions_of(turn)) for turn in native.turns)
            yield Dialogue(native.dialogue_id, name, turns, place)


def sgd_files(path: Path, split: Split | None = None) -> list[tuple[Split, list[Path]]]:
    """The dialogue files of each split. Raises :class:`UserError` if there are none."""
    if path.is_file():
        return [(split or split_of(path.parent.name, path), [path])]
    direct = sorted(path.glob("dialogues*.json"))
    if direct:
        return [(split or split_of(path.name, path), direct)]
    folders = sorted(folder for folder in path.glob("*") if sorted(folder.glob("dialogues*.json")))
    pairs = [(split_of(folder.name, folder), sorted(folder.glob("dialogues*.json"))) for folder in folders]
    matching = [pair for pair in pairs if split in (None, pair[0])]
    if not matching:
        raise UserError(f"{at(path)}: no SGD dialogues there (expected train/dialogues_001.json, ...)")
    return matching
