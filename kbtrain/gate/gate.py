"""Gates: what each one can be asked.

A gate gives one number per question or dialogue turn; higher = retrieval more needed. It retrieves where the score is
above its threshold, which is chosen on dev questions afterwards and noted in its card.
"""

from __future__ import annotations

import copy
import functools
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Real
from typing import Any, ClassVar, Literal, Self

from kbtrain.answers.writing import is_blank, language_of
from kbtrain.errors import UserError, did_you_mean
from kbtrain.gate.card import CARD, GateCard, Stage, Threshold
from kbtrain.records import Decision, Example, GateExample, Target, TurnExample
from kbtrain.utterances import decide_by, input_kind, within

Reads = Literal["question", "turn"]
Unit = Literal["probability", "log odds"]
ByName = Mapping[str, Sequence[float]]  # scores of one gate by its own names, each in the examples' order


class Gate(ABC):
    """Scores questions or dialogue turns, and decides by a threshold which of them need a search.

    A kind of gate sets ``name`` and defines :meth:`score_examples`. ``needs_evidence``: examples carry retrieved text.
    ``reads``: the examples it takes. ``unit``: of the score; None where it is neither a probability nor log odds.
    ``card`` is None for gates without a folder. ``gates``: those that it is made of; ``server``: the one
    it asks, with its own :meth:`answer_within`. ``one_pass``: the model and prompts by which gates can be scored from
    one pass, see :class:`~kbtrain.gates.answering.PassReader`; None for a gate that has its own pass.
    """

    needs_evidence: bool = False
    reads: frozenset[Reads] = frozenset({"question"})
    unit: Unit | None = None
    card: GateCard | None = None
    gates: Sequence[Gate] = ()
    server: Any = None
    one_pass: Any = None

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that scores and thresholds are stored under."""

    @abstractmethod
    def score_examples(self, examples: Sequence[Any]) -> list[float]:
        """One score per example, in the gate's documented unit; higher = retrieval more needed."""

    @property
    def stage(self) -> Stage:
        """The earliest moment at which it can be asked, see :data:`STAGES`."""
        if self.needs_evidence:
            return "search"
        return self.card.stage if self.card else "question"

    @functools.cached_property
    def spent(self) -> Counter[str]:
        """Requests, samples, tokens and prompt tokens so far; without requests: one forward pass an example."""
        return Counter() if self.card is None or self.card.USES_MODEL else Counter(requests=0)

    def score(self, inputs: Sequence[str | Example]) -> list[float]:
        """One score per text or example, in their order.

        Raises :class:`UserError` for what the gate cannot read, and for a gate that gives another number of scores.
        """
        examples = self.examples(inputs)
        scores = [float(value) for value in self.score_examples(examples)]  # another package's may be numpy's
        if len(scores) != len(examples):
            raise UserError(f"gate '{self.name}': {len(scores)} scores for {len(examples)} examples; it is broken")
        return scores

    def score_all(self, inputs: Sequence[str | Example]) -> dict[str, list[float]]:
        """All scores that one pass gives, by name; most gates have one."""
        return {self.name: self.score(inputs)}

    @property
    def noted_threshold(self) -> Threshold | None:
        """The threshold that the card notes, with all that is known of it; None if none was chosen yet."""
        return self.card.thresholds.get(self.name) if self.card else None

    @property
    def promise(self) -> str:
        """The promise of its own threshold for new questions, in words; empty without one."""
        return self.noted_threshold.promise if self.noted_threshold else ""

    @property
    def threshold(self) -> float | None:
        """The threshold noted in the card; None if none was chosen yet."""
        return self.noted_threshold.threshold if self.noted_threshold else None

    def gate(self, key: Target) -> Gate:
        """The gate that decides by another label. Raises :class:`UserError`: this one has a single label."""
        raise UserError(f"key {key!r:.60}: gate '{self.name}' has no keys; remove it")

    def answer_within(self, seconds: float) -> None:
        """Limit in seconds for what a score asks of a server, its members' too: a client waits."""
        for source in (*self.gates, *([self.server] if self.server else [])):
            source.answer_within(seconds)

    def decide(self, inputs: Sequence[str | Example], threshold: float | None = None) -> list[Decision]:
        """One decision per text or example. ``threshold`` None: the gate's own.

        Small talk, instructions about a text and arithmetic never lead to a search (:mod:`kbtrain.utterances`).
        Raises :class:`UserError` without a threshold, and for gates that need retrieved text.
        """
        chosen, values = self.threshold_or(threshold), as_list(inputs, f"gate '{self.name}'")
        certain = self.unit == "probability"
        shown = within(chosen) if certain else chosen
        return [
            Decision(score, self.probability(score), shown, *decide_by(score, chosen, input_kind(value), certain))
            for score, value in zip(self.score(values), values, strict=True)
        ]

    def threshold_or(self, threshold: float | None) -> float:
        """The threshold that is given, else the gate's own. Raises :class:`UserError` for none, and for no number."""
        chosen: Any = self.threshold if threshold is None else threshold  # of callers without types: anything
        if chosen is None:
            raise UserError(
                f"gate '{self.name}': no threshold in its {CARD}; choose one on dev questions (eval/calibrate.py), or "
                "give one: threshold=..."
            )
        if isinstance(chosen, bool) or not isinstance(chosen, Real) or not math.isfinite(chosen):
            raise UserError(f"gate '{self.name}': threshold: expected a finite number, found {chosen!r:.60}")
        return float(chosen)

    def needs_retrieval(self, text: str | Example, threshold: float | None = None) -> bool:
        """True if the score of one text (or example) is above the threshold."""
        return self.decide([text], threshold)[0].retrieve

    def probability(self, score: float) -> float | None:
        """The probability that retrieval is needed which a score states, uncalibrated; None without such a unit."""
        if self.unit == "log odds":
            return logistic(score)
        return score if self.unit == "probability" else None

    def examples(self, inputs: Sequence[str | Example]) -> list[Example]:
        """Texts as examples; examples as they are. Raises :class:`UserError` for anything that the gate cannot read."""
        return [self._example(value, place) for place, value in enumerate(as_list(inputs, f"gate '{self.name}'"))]

    def _example(self, value: object, place: int) -> Example:
        if isinstance(value, str) and "question" in self.reads:
            if is_blank(value):
                raise UserError(f"gate '{self.name}': text {place} is empty; expected a question")
            if self.needs_evidence:
                raise UserError(f"gate '{self.name}': needs retrieved text; a bare question is not enough")
            return GateExample.ask(value, language=language_of(value))
        kinds: dict[Reads, type[Example]] = {"question": GateExample, "turn": TurnExample}
        if isinstance(value, tuple(kinds[reads] for reads in self.reads)):
            return value  # type: ignore[return-value]  # isinstance of a tuple made at run time
        expected = " or ".join(kinds[reads].__name__ for reads in sorted(self.reads))
        texts = "texts or " if "question" in self.reads else ""
        raise UserError(
            f"gate '{self.name}': reads {texts}records {expected} (kbtrain.records), found {type(value).__name__} "
            f"at place {place}"
        )


def as_list(inputs: object, whose: str) -> list[Any]:
    """The inputs as a list: in an order, and to be read more than once. Raises :class:`UserError`."""
    wrong = isinstance(inputs, str | bytes | GateExample | TurnExample | Mapping | Set)
    if wrong or not isinstance(inputs, Iterable):
        raise UserError(f"{whose}: expected a list of questions, found {inputs!r:.60}; put it in a list")
    return list(inputs)


class KeyedGate(Gate):
    """A gate for each of its ``keys``, all from one pass; :attr:`key` is the one that decides."""

    keys: tuple[Target, ...]
    key: Target
    prefix: ClassVar[str]

    @property
    def name(self) -> str:
        return f"{self.prefix}_{self.key}"

    def scores_by_name(self, examples: Sequence[Any]) -> dict[str, list[float]]:
        """The scores of all keys."""
        raise NotImplementedError

    def score_examples(self, examples: Sequence[Any]) -> list[float]:
        return self.scores_by_name(examples)[self.name]

    def score_all(self, inputs: Sequence[str | Example]) -> dict[str, list[float]]:
        return self.scores_by_name(self.examples(inputs))

    def gate(self, key: Target) -> Self:
        """The same gate, deciding by another key. Raises :class:`UserError` for a key that it lacks."""
        if key not in self.keys:
            raise UserError(f"this gate has no key {key!r:.60}; {did_you_mean(str(key), self.keys)}")
        other = copy.copy(self)
        other.key = key
        return other


def logistic(log_odds: float) -> float:
    """The logistic function, without overflow."""
    return 1 / (1 + math.exp(-log_odds)) if log_odds >= 0 else math.exp(log_odds) / (1 + math.exp(log_odds))
