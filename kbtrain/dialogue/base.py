"""The common form of a dialogue and its system turns as gate examples; the files of a split and their JSON."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from kbtrain.errors import UserError, at
from kbtrain.io.files import path_exists
from kbtrain.io.jsonl import read_value
from kbtrain.io.text_files import plain_name
from kbtrain.records import Snippet, Split, TurnExample, Utterance


@dataclass(frozen=True)
class Turn:
    """An utterance with the data set's verdict on it: ``label`` None where it is not labelled. ``actions``: acts
    with their slots and values."""

    said: Utterance
    label: bool | None = None
    enriched: str | None = None
    gold_snippets: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()

    def heard(self) -> Utterance:
        """The utterance as later turns find it where the system says its enriched text."""
        return replace(self.said, text=self.enriched) if self.label and self.enriched else self.said


History = Literal["plain", "enriched"]


@dataclass(frozen=True)
class Dialogue:
    """``where`` names file and dialogue for errors."""

    id: str
    split: Split
    turns: tuple[Turn, ...]
    where: str
    snippets: tuple[Snippet, ...] = ()


def turn_examples(dialogue: Dialogue, history: History = "plain") -> Iterator[TurnExample]:
    """One example per SYSTEM turn after other turns, with these turns as its context.

    ``history`` enriched: earlier turns that people enriched have their enriched text, as in KETOD.
    """
    n = len(dialogue.turns)
    for i, turn in enumerate(dialogue.turns):
        if turn.said.speaker == "SYSTEM" and i > 0:
            earlier_turns = dialogue.turns[:i]
            context = tuple(earlier.said if history == "plain" else earlier.heard() for earlier in earlier_turns)
            yield TurnExample(
                id=f"{dialogue.id}:{i}", dialogue_id=dialogue.id, split=dialogue.split, turn=i, context=context,
                services=services_so_far(context), label=turn.label, response=turn.said.text or None,
                response_acts=turn.said.acts, enriched_response=turn.enriched, gold_snippets=turn.gold_snippets,
                position=i / n, response_actions=turn.actions,
            )  # fmt: skip


def services_so_far(context: Iterable[Utterance]) -> tuple[str, ...]:
    """The services named in these turns, each once, in the order of their last mention."""
    last_mentions: dict[str, None] = {}
    for utterance in context:
        for service in utterance.services:
            last_mentions.pop(service, None)
            last_mentions[service] = None
    return tuple(last_mentions)


def domain_of(service: str) -> str:
    """``Restaurants_1`` belongs to the domain ``restaurants``."""
    return service.rsplit("_", 1)[0].lower() if service.rpartition("_")[2].isdigit() else service.lower()


def check_dialogues(dialogues: Iterable[Dialogue]) -> Iterator[Dialogue]:
    """Pass them on. An id that another split gives to another dialogue, as SGD counts from 1_00000 in each, becomes
    ``SPLIT-ID``. Raises :class:`UserError` naming the dialogue if it is there twice (in two splits: it would leak),
    if it has no turns, or if a turn is repeated."""
    by_id: dict[str, dict[Split, tuple[str, int]]] = {}  # by id and split: where, and a hash of what is said
    for dialogue in dialogues:
        text, by_split = hash(tuple(turn.said.text for turn in dialogue.turns)), by_id.setdefault(dialogue.id, {})
        for split, (place, its) in by_split.items():
            if split == dialogue.split or its == text:
                raise UserError(f"{dialogue.where}: duplicate dialogue (first in {place}); delete one")
        by_split[dialogue.split] = (dialogue.where, text)
        if not dialogue.turns:
            raise UserError(f"{dialogue.where}: no turns")
        for i, (former, following) in enumerate(itertools.pairwise(dialogue.turns)):
            if former.said.speaker == following.said.speaker and former.said.text == following.said.text:
                raise UserError(f"{dialogue.where}: turns {i} and {i + 1} are the same; delete one of them")
        yield _renamed(dialogue, f"{dialogue.split}-{dialogue.id}") if len(by_split) > 1 else dialogue


def _renamed(dialogue: Dialogue, name: str) -> Dialogue:
    """Its own snippets begin with its id, too."""
    ids = {snippet.id: name + snippet.id.removeprefix(dialogue.id) for snippet in dialogue.snippets}
    snippets = tuple(replace(snippet, id=ids[snippet.id], dialogue_id=name) for snippet in dialogue.snippets)
    turns = tuple(
        replace(turn, gold_snippets=tuple(ids[gold] for gold in turn.gold_snippets)) for turn in dialogue.turns
    )
    return replace(dialogue, id=name, turns=turns, snippets=snippets)


SPLITS: tuple[Split, ...] = get_args(Split)
_OTHER_NAMES = {"val": "dev", "valid": "dev", "validation": "dev"}


def split_of(name: str, path: Path) -> Split:
    """The split that a name means. Raises :class:`UserError` for any other name."""
    split_name = _OTHER_NAMES.get(name, name)
    for split in SPLITS:
        if split_name == split:
            return split
    raise UserError(f"{at(path)}: unknown split '{name}'; name it train, dev (or val) or test, or give the split")


def split_files(path: Path, suffix: str, split: Split | None) -> list[tuple[Split, Path]]:
    """The files of a folder named ``<split><ending>`` (one of another split is refused), or the one file given.

    Raises :class:`UserError` without any, or if a single file's name says no split and none is given.
    """
    if path_exists(path) and not path.is_dir():
        return [(split or split_of(plain_name(path.name).removesuffix(suffix), path), path)]
    files = sorted(path.glob(f"*{suffix}*")) if path.is_dir() else []
    names = ((plain_name(file.name), file) for file in files)
    pairs = [(split_of(name.removesuffix(suffix), file), file) for name, file in names if name.endswith(suffix)]
    if not pairs:
        raise UserError(f"{at(path)}: no file <split>{suffix} there (train{suffix}, dev{suffix}, test{suffix})")
    return [pair for pair in pairs if split in (None, pair[0])]


def load_list(path: Path) -> list[Any]:
    """The list that a JSON file holds. Raises :class:`UserError`."""
    data = read_value(path)
    if not isinstance(data, list):
        raise UserError(f"{at(path)}: expected a JSON list, found {type(data).__name__}")
    return data


def dialogue_place(data: Any, number: int, path: Path) -> str:
    """File and dialogue for an error: the dialogue's id, or its number in the file (from 1)."""
    name = data.get("dialogue_id") if isinstance(data, dict) else None
    return f"{path}: dialogue '{name}'" if name else f"{path}: dialogue number {number}"


_Said = tuple[tuple[str, str], ...]


class Together:
    """Names of dialogues by their beginnings: equal up to the user's second utterance is one dialogue.

    Data sets of single turns contain a dialogue several times, each time up to a later turn. Folds and bootstraps must
    not split such turns: they leak into each other. A dialogue in two splits has one name in both, so that the leak is
    detected.

    A context that ends before it joins one dialogue of its split that begins so, not all: "Hi" begins many. Memory
    holds one beginning per dialogue.
    """

    def __init__(self) -> None:
        self._begun: dict[_Said, str] = {}
        self._opened: dict[tuple[Split, _Said], str] = {}
        self._joined: set[str] = set()  # names of openings that a longer beginning has

    def name(self, context: Sequence[Utterance], name: str, split: Split) -> str:
        """Name of the context's dialogue: an earlier one's, maybe of another split, or else ``name``."""
        utterances = tuple((utterance.speaker, utterance.text) for utterance in context)
        users = [place for place, (speaker, _) in enumerate(utterances) if speaker == "USER"]
        first_part = split, utterances[: users[0] + 1] if users else utterances
        if len(users) < 2:
            return self._opened.setdefault(first_part, name)
        beginning = utterances[: users[1] + 1]
        if beginning not in self._begun:
            opened = self._opened.setdefault(first_part, name)
            self._begun[beginning] = name if opened in self._joined else opened
            self._joined.add(opened)
        return self._begun[beginning]
