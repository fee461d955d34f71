"""Contexts without a dialogue's name that belong to one dialogue: DSTC's instances, a user's own lines.

Data sets of single turns hold a dialogue several times, each time up to a later turn. What was learnt of one such turn
is known of the next: in two folds of a cross-validation they flatter it, and as two dialogues of a bootstrap they
narrow its interval. One that stands in two splits bears one name in both, by which it is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbtrain.records import Split, Utterance

_Said = tuple[tuple[str, str], ...]


class Together:
    """Names of dialogues by their beginnings: equal up to the user's second utterance is one dialogue.

    A context that ends before it joins one dialogue of its split that begins so, not all: "Hi" begins many. Memory
    holds one beginning per dialogue.
    """

    def __init__(self) -> None:
        self._begun: dict[_Said, str] = {}
        self._opened: dict[tuple[Split, _Said], str] = {}
        self._joined: set[str] = set()  # names of openings that a longer beginning has

    def name(self, context: Sequence[Utterance], name: str, split: Split) -> str:
        """Name of the context's dialogue: an earlier one's, maybe of another split, or else ``name``."""
        said = tuple((utterance.speaker, utterance.text) for utterance in context)
        users = [place for place, (speaker, _) in enumerate(said) if speaker == "USER"]
        opening = split, said[: users[0] + 1] if users else said
        if len(users) < 2:
            return self._opened.setdefault(opening, name)
        beginning = said[: users[1] + 1]
        if beginning not in self._begun:
            opened = self._opened.setdefault(opening, name)
            self._begun[beginning] = name if opened in self._joined else opened
            self._joined.add(opened)
        return self._begun[beginning]
