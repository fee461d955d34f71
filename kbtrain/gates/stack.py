"""The gate ``stack``: a logistic regression on the scores of any gates, whose folders its own names.

A score that lies in [0, 1] in all training questions enters as log odds; scores outside the range of the training
questions count as its end. All are put on mean 0 and deviation 1, so that the penalty means the same for each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from kbtrain.gate.card import STAGES, KeyedCard, Stage
from kbtrain.gate.gate import ByName, Gate, KeyedGate, logistic
from kbtrain.gate.trained_on import HeldOut, question_hash
from kbtrain.gates.answering import scores_of_one_pass
from kbtrain.gates.features import additive
from kbtrain.gates.features.additive import NothingToLearn, check_both, fit_logistic, least_loss
from kbtrain.gates.registry import QUESTION, Kind, load_gate, read_card
from kbtrain.records import Example, GateExample, Target
from kbtrain.runtime.cores import one_thread
from kbtrain.training.data import Labels

if TYPE_CHECKING:
    from kbtrain.llm.served_states import StatesServer

Columns = Mapping[str, Sequence[float]]  # scores by name
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # C of the logistic regression
_CLIP = 1e-3  # probabilities nearer to 0 or 1 count as this


class Input(BaseModel):
    """One score: clipped to ``low`` and ``high``, as log odds if ``log_odds``, times ``slope``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    low: float
    high: float
    log_odds: bool
    slope: float

    def value(self, score: float) -> float:
        """The score as it enters, before the slope."""
        value = min(max(score, self.low), self.high)
        if not self.log_odds:
            return value
        p = min(max(value, _CLIP), 1 - _CLIP)
        return math.log(p) - math.log1p(-p)

    def log_odds_range(self) -> float:
        """Change of the log odds between the ends of the score's range."""
        return self.slope * (self.value(self.high) - self.value(self.low))


class Linear(BaseModel):
    """Log odds = ``intercept`` + the sum over ``inputs``; ``strength`` is the C that was chosen."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    intercept: float
    inputs: dict[str, Input]
    strength: float

    def log_odds(self, columns: Columns) -> list[float]:
        n = len(next(iter(columns.values())))
        return [
            self.intercept + math.fsum(term.slope * term.value(columns[name][i]) for name, term in self.inputs.items())
            for i in range(n)
        ]


@one_thread()
def fit_linear(columns: Columns, need: Sequence[float], seed: int = 0, groups: Sequence[int] | None = None) -> Linear:
    """``need``: probability in [0, 1] of each question that retrieval is needed. The penalty is chosen by
    cross-validation that keeps ``groups`` whole; None: each question is one.

    Raises :class:`NothingToLearn` if no score varies.
    """
    labels = np.asarray(need, dtype=np.float64)
    check_both(need)
    shapes = {name: _shape(values) for name, values in columns.items()}
    shapes = {name: shape for name, shape in shapes.items() if shape.value(shape.low) < shape.value(shape.high)}
    if not shapes:
        raise NothingToLearn("no member's score varies among the training questions; there is nothing to learn")
    table = np.array([[shape.value(value) for value in columns[name]] for name, shape in shapes.items()]).T
    mean, spread = table.mean(0), table.std(0)
    scaled = (table - mean) / spread
    strength = least_loss(STRENGTHS, scaled, labels, seed, groups)
    scaled_slopes, intercept = fit_logistic(scaled, labels, strength)
    slopes = scaled_slopes / spread
    inputs = {
        name: shape.model_copy(update={"slope": float(slope)})
        for (name, shape), slope in zip(shapes.items(), slopes, strict=True)
    }
    return Linear(intercept=intercept - float(slopes @ mean), inputs=inputs, strength=strength)


def held_out_log_odds(
    columns: Columns, need: Sequence[float], seed: int = 0, groups: Sequence[int] | None = None
) -> list[float]:
    """As :func:`kbtrain.gates.features.additive.held_out_log_odds`, of this regression."""

    def rows(table: Columns, places: Sequence[int]) -> Columns:
        return {name: [values[i] for i in places] for name, values in table.items()}

    return additive.held_out_log_odds(columns, need, seed, groups, fit_linear, rows)


def _shape(values: Sequence[float]) -> Input:
    low, high = min(values), max(values)
    return Input(low=low, high=high, log_odds=low >= 0 and high <= 1, slope=0.0)


OpenMember = Callable[[Path], Gate]


class Member(BaseModel):
    """A gate's folder, as seen from the stack's, and the names of those of its scores that are read.

    In the stack's models they stand as ``FOLDER/SCORE``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    folder: str
    scores: tuple[str, ...]
    stage: Stage

    def inputs(self) -> dict[str, str]:
        return {score: f"{Path(self.folder).name}/{score}" for score in self.scores}


class StackCard(KeyedCard):
    """The content of ``gate.json``: members, and a model of their scores for each key."""

    PREFIX: ClassVar[str] = "stack"
    ABSENT = frozenset({"base_model"})
    kind: Literal["stack"] = "stack"
    members: tuple[Member, ...] = Field(min_length=1)
    labels: Labels
    models: dict[Target, Linear]

    @field_validator("models")
    @classmethod
    def _of_members(cls, models: dict[Target, Linear], info: ValidationInfo) -> dict[Target, Linear]:
        member_scores = {name for member in info.data.get("members", ()) for name in member.inputs().values()}
        for model in models.values():
            if foreign := sorted(model.inputs.keys() - member_scores):
                raise ValueError(f"'{foreign[0]}' is not a score of its members")
        return models

    def parts(self) -> tuple[str, ...]:
        return tuple(member.folder for member in self.members)

    @property
    def stage(self) -> Stage:
        return max((member.stage for member in self.members), key=STAGES.index)

    def of_members(self, scores: Sequence[ByName]) -> dict[str, list[float]]:
        """The scores of every key, by name, from those of each member."""
        columns = {
            name: of[score]
            for member, of in zip(self.members, scores, strict=True)
            for score, name in member.inputs().items()
        }
        return self.combine(columns)

    def combine(self, columns: Columns) -> dict[str, list[float]]:
        """The same from columns of scores by their names in the models."""
        return {f"{self.PREFIX}_{key}": [logistic(x) for x in self.models[key].log_odds(columns)] for key in self.keys}


class Stack(KeyedGate):
    """Score = p(retrieval needed) in [0, 1] by :attr:`key`. It needs what any of its members needs, reads what all of
    them read, and costs what they cost: ``spent`` is their sum."""

    prefix = "stack"
    unit = "probability"

    def __init__(self, gates: Sequence[Gate], card: StackCard, key: Target | None = None) -> None:
        self.gates = list(gates)
        self.needs_evidence = any(gate.needs_evidence for gate in gates)
        self.reads = frozenset.intersection(*(gate.reads for gate in gates))
        self.spent = Counter()  # a member that counts nothing makes one request each
        self.card: StackCard = card
        self.keys: tuple[Target, ...] = card.keys
        self.key: Target = card.keys[0] if key is None else key

    def scores_by_name(self, examples: Sequence[Example]) -> dict[str, list[float]]:
        return self.card.of_members(self.member_scores(examples))

    def member_scores(self, examples: Sequence[Example]) -> list[ByName]:
        """Scores of each member, in the members' order; what they cost is counted.

        Members that read one model's passes at one prompt are scored from one prefill and one draft, and those that
        read one server's states from one request.
        """
        by_member: dict[int, ByName] = {}
        for places in self._one_pass(examples):
            asked, readers = cast("Sequence[GateExample]", examples), cast("Any", [self.gates[i] for i in places])
            if readers[0].server is None:
                scores, spent = scores_of_one_pass(readers, asked)
            else:
                from kbtrain.gates.probe.served import scores_of_one_request

                scores, spent = scores_of_one_request(readers, asked)
            by_member |= zip(places, scores, strict=True)
            self.spent += spent
        for place, gate in enumerate(self.gates):
            if place in by_member:
                continue
            before = Counter(gate.spent)
            by_member[place] = gate.score_all(examples)
            cost = {name: n - before[name] for name, n in gate.spent.items()} or {"requests": len(examples)}
            for name, n in cost.items():
                self.spent[name] += n  # 0 stays: it says that no request was made
        return [by_member[place] for place in range(len(self.gates))]

    def _one_pass(self, examples: Sequence[Example]) -> list[list[int]]:
        """Places of members that are read together; with passages their prompts differ."""
        if not examples or any(getattr(example, "reference", None) is not None for example in examples):
            return []
        places: dict[Any, list[int]] = {}
        for place, gate in enumerate(self.gates):
            if gate.one_pass is not None:
                places.setdefault(gate.one_pass, []).append(place)
        gates, together = cast("Any", self.gates), (group for group in places.values() if len(group) > 1)
        return [group for group in together if any(gates[i].server or gates[i].draft_tokens for i in group)]

    @classmethod
    def load(cls, folder: Path | str, open_member: OpenMember) -> Stack:
        card = StackCard.read(folder)
        return cls([open_member(Path(folder) / member.folder) for member in card.members], card, card.best_key())


def held_out_or_own(
    questions: Sequence[GateExample], held_out: Sequence[HeldOut], stack_scores: Sequence[float]
) -> list[float]:
    """Held-out scores where there are such, else the stack's own."""
    by_hash = dict(held_out)
    return [by_hash.get(question_hash(q.question), value) for q, value in zip(questions, stack_scores, strict=True)]


def _open(folder: Path, dtype: str, device: str) -> Stack:
    """A stack whose members that read one model read one copy of it."""
    from kbtrain.models.load import opened_once

    with opened_once():
        return Stack.load(folder, partial(load_gate, dtype=dtype, device=device))


def _open_served(folder: Path, states: StatesServer) -> Stack:
    """A stack whose probes read from the server; its other members are opened here: a stack reads all their scores."""
    from kbtrain.gates.probe.gate import ProbeCard

    def open_member(member: Path) -> Gate:
        served = isinstance(card := read_card(member), StackCard) or (isinstance(card, ProbeCard) and card.statistics)
        return load_gate(member, states=states if served else None)

    return Stack.load(folder, open_member)


KIND = Kind(
    StackCard, _open, QUESTION, "recipes/train_stack.py", open_served=_open_served, of_members=StackCard.of_members
)
