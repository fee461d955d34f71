"""Dialogue-state gate: logistic regression on acts, services and slots of the past turns.

It reads the data set's annotation of the turns before (:mod:`kbtrain.gates.turns.features`), no word and nothing of the
turn to come. Where turns are not annotated, little is left of it: use the structural gate or an encoder there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from kbtrain.errors import UserError
from kbtrain.gate.card import GateCard
from kbtrain.gate.gate import Gate, Reads, logistic
from kbtrain.gates.turns.features import dialogue_features
from kbtrain.records import TurnExample


def labelled_turns(
    gate: str, examples: Sequence[TurnExample], need: Sequence[float] | None = None
) -> tuple[list[TurnExample], list[bool]]:
    """The turns that have a label, and their labels (or those that ``need`` gives).

    Raises :class:`UserError` for a single class.
    """
    labelled = [example for example in examples if need is not None or example.label is not None]
    labels = [bool(example.label) for example in labelled] if need is None else [value > 0.5 for value in need]
    if len(set(labels)) < 2:
        raise UserError(f"{gate} gate: {len(labelled)} labelled turns of one class, nothing to learn")
    return labelled, labels


def feature_table(rows: Sequence[Mapping[str, float]], least: int) -> tuple[list[str], np.ndarray]:
    """Names and values (rows, names) of the features that are not 0 in at least that number of rows."""
    from sklearn.feature_extraction import DictVectorizer

    counts = Counter(name for row in rows for name, value in row.items() if value)
    frequent = [{name: value for name, value in row.items() if counts[name] >= least} for row in rows]
    if not any(frequent):
        return [], np.zeros((len(rows), 0))
    vectorizer = DictVectorizer(sparse=False)
    values = vectorizer.fit_transform(frequent)
    return vectorizer.get_feature_names_out().tolist(), values


LEAST_TURNS = 3  # a feature that fewer training turns have is skipped
C = 0.004  # inverse of the L2 penalty on standardised features: hundreds of them, and few positive turns


class DialogueStateCard(GateCard):
    """The whole gate, in ``gate.json``: ``intercept`` plus ``weights`` (log odds per unit, by feature name)."""

    ABSENT = frozenset({"base_model", "label_rule", "versions"})
    USES_MODEL = False
    kind: Literal["dialogue_state"] = "dialogue_state"
    intercept: float
    weights: dict[str, float]


class DialogueStateGate(Gate):
    """Score = p(retrieval needed) in [0, 1], at the classes' true shares: the logistic function of the card's weights
    times the turn's features."""

    name = "dialogue_state"
    reads: frozenset[Reads] = frozenset({"turn"})
    unit = "probability"

    def __init__(self, card: DialogueStateCard) -> None:
        self.card: DialogueStateCard = card

    @classmethod
    def fit(
        cls,
        examples: Sequence[TurnExample],
        need: Sequence[float] | None = None,
        c: float = C,
        least_turns: int = LEAST_TURNS,
    ) -> DialogueStateGate:
        """Learn from labelled turns (scikit-learn). Raises :class:`UserError` for a single class."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        turns, labels = labelled_turns("dialogue_state", examples, need)
        names, table = feature_table([dialogue_features(example) for example in turns], least_turns)
        scaler = StandardScaler()
        values = scaler.fit_transform(table)
        model = LogisticRegression(C=c, max_iter=1000).fit(values, labels)
        slopes = model.coef_[0] / scaler.scale_
        weights = dict(zip(names, slopes.tolist(), strict=True))
        facts = {"turns": len(turns), "positive": sum(labels), "c": c, "least_turns": least_turns}
        intercept = float(model.intercept_[0] - slopes @ scaler.mean_)
        return cls(DialogueStateCard(intercept=intercept, weights=weights, run=facts))

    def score_examples(self, examples: Sequence[TurnExample]) -> list[float]:
        return [logistic(self.log_odds(example)) for example in examples]

    def log_odds(self, example: TurnExample) -> float:
        """Log odds of the score."""
        weights, features = self.card.weights, dialogue_features(example)
        return self.card.intercept + math.fsum(weights.get(name, 0.0) * value for name, value in features.items())

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> DialogueStateGate:
        """Open a folder; ``dtype`` and ``device`` are for gates with a model. Raises :class:`UserError`."""
        return cls(DialogueStateCard.read(folder))
