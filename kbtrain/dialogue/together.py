"""Contexts without a dialogue's name that belong to one dialogue: DSTC's instances, a user's own lines.

Data sets of single turns contain a dialogue several times, each time up to a later turn. These turns leak into each
other: in two folds of a cross-validation they flatter it, and as two dialogues of a bootstrap they narrow its interval.
A dialogue in two splits has one name in both, so that the leak is detected.
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
