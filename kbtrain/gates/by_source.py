"""The gate by_source: never or always search by where a question comes from. Learned gates have to beat it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from kbtrain.gate.card import GateCard
from kbtrain.gate.gate import Gate
from kbtrain.gates.features.question import question_form
from kbtrain.gates.registry import FIT_GATE, QUESTION, Kind
from kbtrain.records import GateExample, Label

SHRINK = 10.0  # training questions of the mean that each group counts beside its own


def group_of(example: GateExample) -> str:
    """The question's source, and where it has none the kind of question."""
    return f"source {example.source}" if example.source else f"asks {question_form(example.question)}"


class BySourceCard(GateCard):
    """Content of ``gate.json``: the shrunk mean of each group, and that of all training questions."""

    USES_MODEL = False
    ABSENT = frozenset({"base_model"})
    kind: Literal["by_source"] = "by_source"
    means: dict[str, float]
    overall: float


class BySource(Gate):
    """Score = mean need of a search among the training questions of its source, shrunk towards the mean of all.

    A question of no known source or kind gets the mean of all. With one threshold it is never or always by source.
    """

    name = "by_source"
    unit = "probability"

    def __init__(self, card: BySourceCard) -> None:
        self.card: BySourceCard = card

    @classmethod
    def fit(cls, examples: Sequence[GateExample], need: Sequence[float]) -> BySource:
        """``need``: of each example, the probability that a search is needed, or its benefit."""
        by_group: dict[str, list[float]] = defaultdict(list)
        for example, value in zip(examples, need, strict=True):
            by_group[group_of(example)].append(value)
        overall = sum(need) / len(need)
        means = {group: (sum(v) + SHRINK * overall) / (len(v) + SHRINK) for group, v in sorted(by_group.items())}
        return cls(BySourceCard(means=means, overall=overall))

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        return [self.card.means.get(group_of(example), self.card.overall) for example in examples]


def of_labels(labels: Sequence[Label], texts: Mapping[str, str], sources: Mapping[str, str]) -> BySource:
    """The gate of the labels' benefit, from training questions and their sources by id."""
    taught = [(label.question_id, label.benefit) for label in labels if label.benefit is not None]
    examples = [replace(GateExample.ask(texts[name]), source=sources.get(name, "")) for name, _ in taught]
    return BySource.fit(examples, [benefit for _, benefit in taught])


def load(folder: Path | str, dtype: str, device: str) -> BySource:
    """Open a folder; neither ``dtype`` nor ``device`` matters. Raises :class:`UserError`."""
    return BySource(BySourceCard.read(folder))


KIND = Kind(BySourceCard, load, QUESTION, FIT_GATE, fit=BySource.fit)
