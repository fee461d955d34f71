"""SGD and KETOD (Chen et al., 2022): SGD dialogues whose system turns people enriched with knowledge, or left.

Schema-Guided Dialogue: folders train, dev and test with files dialogues_001.json, ...; no labels. KETOD has two
layouts: as its own script joins the release with SGD, and one joined dialogue a line without snippets.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from kbtrain.dialogue.base import Dialogue, Turn, dialogue_place, load_list, split_files, split_of
from kbtrain.errors import UserError, at
from kbtrain.io.jsonl import lines, parsed, value
from kbtrain.records import Entity, Snippet, Speaker, Split, Utterance

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


def native_dialogues(rows: Iterable[Any], path: Path) -> Iterator[tuple[str, NativeDialogue]]:
    """Stream (where, dialogue) of a file's rows."""
    for number, data in enumerate(rows, 1):
        place = dialogue_place(data, number, path)
        dialogue = parsed(NativeDialogue, data, place)
        alternating(dialogue.turns, place)
        yield place, dialogue


def sgd_dialogues(path: Path, split: Split | None = None) -> Iterator[Dialogue]:
    """A folder with the folders train, dev and test; or one file (or folder of files), whose split must be given."""
    for name, files in sgd_files(path, split):
        for place, native in itertools.chain.from_iterable(native_dialogues(load_list(file), file) for file in files):
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


def ketod_joined(path: Path, split: Split | None = None) -> Iterator[Dialogue]:
    """Files train.json, dev.json and test.json as KETOD's script writes them, or one of them."""
    for name, file in split_files(path, ".json", split):
        yield from _dialogues(load_list(file), name, file)


def ketod_lines(path: Path, split: Split | None = None) -> Iterator[Dialogue]:
    """Files train.jsonl, dev.jsonl and test.jsonl: one joined dialogue a line; or one of them."""
    for name, file in split_files(path, ".jsonl", split):
        yield from _dialogues((value(line, file, number) for number, line in lines(file)), name, file)


def _dialogues(rows: Iterable[Any], split: Split, path: Path) -> Iterator[Dialogue]:
    for place, native in native_dialogues(rows, path):
        snippets = {snippet.id: snippet for snippet in _snippets(native, place)}
        turns = tuple(_turn(turn, i, native.dialogue_id, snippets, place) for i, turn in enumerate(native.turns))
        yield Dialogue(native.dialogue_id, split, turns, place, tuple(snippets.values()))


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
