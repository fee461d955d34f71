"""A dialogue as every loader gives it, and its system turns as examples for a gate."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kbtrain.errors import UserError
from kbtrain.records import Snippet, Split, TurnExample, Utterance


@dataclass(frozen=True)
class Turn:
    """An utterance with the data set's verdict on it: ``label`` None where nothing is said about it."""

    said: Utterance
    label: bool | None = None
    enriched: str | None = None
    gold_snippets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dialogue:
    """``where`` names file and dialogue for errors. ``only_last``: the last turn alone is an example."""

    id: str
    split: Split
    turns: tuple[Turn, ...]
    where: str
    snippets: tuple[Snippet, ...] = ()
    only_last: bool = False


def turn_examples(dialogue: Dialogue) -> Iterator[TurnExample]:
    """One example per SYSTEM turn that something precedes, with what was said before it."""
    n = len(dialogue.turns)
    for i, turn in enumerate(dialogue.turns):
        if turn.said.speaker == "SYSTEM" and i > 0 and (i == n - 1 or not dialogue.only_last):
            context = tuple(earlier.said for earlier in dialogue.turns[:i])
            yield TurnExample(
                id=f"{dialogue.id}:{i}",
                dialogue_id=dialogue.id,
                split=dialogue.split,
                turn=i,
                context=context,
                services=services_so_far(context),
                label=turn.label,
                response=turn.said.text or None,
                response_acts=turn.said.acts,
                enriched_response=turn.enriched,
                gold_snippets=turn.gold_snippets,
                position=i / n,
            )


def services_so_far(context: Iterable[Utterance]) -> tuple[str, ...]:
    """The services named in these turns, each once, in the order of their last mention."""
    seen: dict[str, None] = {}
    for utterance in context:
        for service in utterance.services:
            seen.pop(service, None)
            seen[service] = None
    return tuple(seen)


def domain_of(service: str) -> str:
    """``Restaurants_1`` belongs to the domain ``restaurants``."""
    return service.rsplit("_", 1)[0].lower() if service.rpartition("_")[2].isdigit() else service.lower()


def checked(dialogues: Iterable[Dialogue]) -> Iterator[Dialogue]:
    """Pass them on. Raises :class:`UserError` naming the dialogue if its id stands there twice (in any split: it
    would leak), if it has no turns, or if a turn is repeated."""
    seen: dict[str, str] = {}
    for dialogue in dialogues:
        if dialogue.id in seen:
            raise UserError(f"{dialogue.where}: stands there twice (first in {seen[dialogue.id]}); delete one")
        seen[dialogue.id] = dialogue.where
        if not dialogue.turns:
            raise UserError(f"{dialogue.where}: no turns")
        for i, (one, other) in enumerate(itertools.pairwise(dialogue.turns)):
            if one.said.speaker == other.said.speaker and one.said.text == other.said.text:
                raise UserError(f"{dialogue.where}: turns {i} and {i + 1} are the same; delete one of them")
        yield dialogue
