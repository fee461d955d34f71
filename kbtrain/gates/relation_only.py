"""The gate that reads only which relation is asked for: what a learnt gate has to beat."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from kbtrain.errors import UserError
from kbtrain.records import GateExample, Label

NEUTRAL = 0.0  # a score above it says: retrieval gained more than it lost on the training questions


class RelationOnly:
    """Score = mean benefit (mastery with retrieval minus without, in [-1, 1]) of the relation's training questions.

    A relation that was not trained on (or None) gets the mean over all training questions.
    """

    name = "relation_only"
    needs_samples = False
    needs_evidence = False

    def __init__(self, labels: Iterable[Label]) -> None:
        """Only labels of the train split are read. Raises :class:`UserError` if none of them has a benefit."""
        benefits: dict[str | None, list[float]] = defaultdict(list)
        for label in labels:
            if label.split == "train" and label.benefit is not None:
                benefits[label.relation].append(label.benefit)
        everything = [b for values in benefits.values() for b in values]
        if not everything:
            raise UserError("gate 'relation_only': no training label has a benefit; sample condition 'rag' for them")
        self.overall = sum(everything) / len(everything)
        self.means = {relation: sum(values) / len(values) for relation, values in benefits.items() if relation}

    def score(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example."""
        return [self.means.get(example.relation or "", self.overall) for example in examples]
