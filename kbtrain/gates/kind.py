"""The record of a kind of gate: what the registry, the recipes and the tables know of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbtrain.gate.card import GateCard
from kbtrain.gate.gate import ByName, Gate, Reads

if TYPE_CHECKING:
    from kbtrain.llm.served_states import StatesServer

FIT_GATE = "recipes/fit_gate.py"  # makes the gates that have no recipe of their own
QUESTION: frozenset[Reads] = frozenset({"question"})
TURN: frozenset[Reads] = frozenset({"turn"})


@dataclass(frozen=True)
class Kind:
    """A kind of gate that lives in folders.

    ``card``: its ``gate.json``, readable without torch. ``open``: of a folder, dtype and device. ``made_by``: the
    script that makes such folders. ``headline``: names listed with the baselines in every table, the last first.
    ``fit``: of gates that are fitted in seconds (recipes/fit_gate.py): from examples and the probability in [0, 1] of
    each that retrieval is needed; where the card is a :class:`~kbtrain.gate.card.KeyedCard`, the label's name is
    ``key``. ``features``: of such a gate whose features take long to compute: (n, d) numbers of examples. They are
    computed once for all keys; ``fit`` gets them as its third argument, and the gate has ``score_features(features)``.
    ``files``: names of files in its folder that go to the hub and come from there, beside
    :data:`kbtrain.gate.hub.FILES`. ``open_served``: of a folder and a server that gives the states of the answering
    model, which is then not opened here. ``of_members``: of the card and its members' scores, of a kind that is
    computed from those.
    """

    card: type[GateCard]
    open: Callable[[Path, str, str], Gate]
    reads: frozenset[Reads]
    made_by: str
    headline: tuple[str, ...] = ()
    fit: Callable[..., Gate] | None = None
    features: Callable[[Sequence[Any]], Any] | None = None
    files: tuple[str, ...] = ()
    open_served: Callable[[Path, StatesServer], Gate] | None = None
    of_members: Callable[[Any, Sequence[ByName]], dict[str, list[float]]] | None = None

    @property
    def unasked(self) -> bool:
        """True for a gate of turns that is made of labels alone, without a recipe: a run gets it when it is scored."""
        return self.fit is not None and self.made_by == FIT_GATE and "turn" in self.reads
