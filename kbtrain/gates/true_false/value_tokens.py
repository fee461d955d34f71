"""Where an answer says True or False, found in its tokens: the first token at which the two renderings differ.

Every combination of values is tokenised as whole text, so that it does not matter how a tokenizer splits
``"True"``, or whether it merges the quote with it. No token id is written down anywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kbtrain.errors import UserError

Values = tuple[bool, ...]  # one value per key, in the order of the keys; a shorter tuple: the earlier keys' values


@dataclass(frozen=True)
class ValueToken:
    """The place where one key's value is decided, given the earlier keys' values.

    ``position`` counts answer tokens before it; ``true_id`` and ``false_id`` are the tokens that stand there;
    ``node`` is the tree token after which they are predicted (-1: the prompt's last token).
    """

    position: int
    true_id: int
    false_id: int
    node: int


@dataclass(frozen=True)
class AnswerTree:
    """All answers to one prompt as a tree of tokens, cut after the last undecided value.

    ``answers``: the whole answer (with what closes it) for each combination of values. ``tokens``, ``parents`` (-1:
    follows the prompt) and ``depths`` (0: first answer token) describe the tree; ``places`` its value positions.
    """

    keys: tuple[str, ...]
    answers: Mapping[Values, tuple[int, ...]]
    places: Mapping[Values, ValueToken]
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest whole answer."""
        return max(len(answer) for answer in self.answers.values())

    @property
    def nodes(self) -> tuple[int, ...]:
        """The tree tokens at which a value is predicted, ascending."""
        return tuple(sorted({place.node for place in self.places.values()}))


def combinations(n_keys: int) -> Iterator[Values]:
    """All combinations of values, all True first."""
    return itertools.product((True, False), repeat=n_keys)


def build_tree(keys: Sequence[str], answers: Mapping[Values, Sequence[int]]) -> AnswerTree:
    """The tree of tokenised answers. Raises :class:`UserError` if the tokens do not tell the values apart."""
    whole = {values: tuple(ids) for values, ids in answers.items()}
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    places: dict[Values, ValueToken] = {}
    children: dict[tuple[int, int], int] = {}
    for given in (prefix for n in range(len(keys)) for prefix in combinations(n)):
        path, true_id, false_id = _first_difference(keys, given, whole)
        node = -1
        for depth, token in enumerate(path):
            if (node, token) not in children:
                children[node, token] = len(tokens)
                tokens.append(token)
                parents.append(node)
                depths.append(depth)
            node = children[node, token]
        places[given] = ValueToken(len(path), true_id, false_id, node)
    return AnswerTree(tuple(keys), whole, places, tuple(tokens), tuple(parents), tuple(depths))


def _first_difference(
    keys: Sequence[str], given: Values, answers: Mapping[Values, tuple[int, ...]]
) -> tuple[tuple[int, ...], int, int]:
    """The tokens before the next key's value, then the True and the False token; the same whatever follows."""
    found = set()
    for rest in combinations(len(keys) - len(given) - 1):
        yes, no = answers[*given, True, *rest], answers[*given, False, *rest]
        at = next((i for i, (a, b) in enumerate(zip(yes, no, strict=False)) if a != b), None)
        if at is not None:
            found.add((yes[:at], yes[at], no[at]))
    if len(found) != 1:
        raise UserError(f"tokenizer: the answers' tokens do not tell True from False for '{keys[len(given)]}'")
    return found.pop()
