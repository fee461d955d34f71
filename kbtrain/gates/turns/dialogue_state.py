"""A small gate of what a dialogue system tracks anyway: logistic regression on acts, services and slots of the past.

It reads the data set's annotation of the turns before (:mod:`kbtrain.gates.turns.features`), no word and nothing of
the turn to come. Where turns are not annotated, little is left of it: use the structural gate or an encoder there.

What the logistic regressions on dialogue turns share: their labels, their score, and what a gate says of itself.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kbtrain.errors import UserError, at
from kbtrain.gate_folder import CARD, Threshold, read_json
from kbtrain.gates.turns.features import dialogue_features
from kbtrain.jsonl import one_line
from kbtrain.provenance import write_atomically
from kbtrain.records import TurnExample

if TYPE_CHECKING:
    import numpy as np


class LogisticTurnGate(BaseModel):
    """Plain numbers, saved as JSON; reads neither samples nor evidence."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def needs_samples(self) -> bool:
        """It needs none."""
        return False

    @property
    def needs_evidence(self) -> bool:
        """It needs none."""
        return False


def labelled(gate: str, examples: Sequence[TurnExample]) -> tuple[list[TurnExample], list[bool]]:
    """The turns that have a label, and their labels. Raises :class:`UserError` for a single class."""
    known = [example for example in examples if example.label is not None]
    labels = [bool(example.label) for example in known]
    if len(set(labels)) < 2:
        raise UserError(f"{gate} gate: {len(known)} labelled turns of one class, nothing to learn")
    return known, labels


def feature_table(rows: Sequence[Mapping[str, float]], least: int) -> tuple[list[str], np.ndarray]:
    """Names and values (rows, names) of the features that are not 0 in at least so many rows."""
    import numpy as np
    from sklearn.feature_extraction import DictVectorizer

    seen = Counter(name for row in rows for name, value in row.items() if value)
    kept = [{name: value for name, value in row.items() if seen[name] >= least} for row in rows]
    if not any(kept):
        return [], np.zeros((len(rows), 0))
    vectorizer = DictVectorizer(sparse=False)
    values = vectorizer.fit_transform(kept)
    return vectorizer.get_feature_names_out().tolist(), values


def probability(log_odds: float) -> float:
    """The logistic function, without overflow."""
    return 1 / (1 + math.exp(-log_odds)) if log_odds >= 0 else math.exp(log_odds) / (1 + math.exp(log_odds))


LEAST_TURNS = 3  # a feature that fewer training turns have is left out
C = 0.004  # inverse of the L2 penalty on standardised features: hundreds of them, and few positive turns


class DialogueStateGate(LogisticTurnGate):
    """Score = p(retrieval needed) in [0, 1], at the classes' true shares: ``intercept`` plus ``weights`` (log odds per
    unit, by feature name) times the turn's features. Plain numbers: saved as JSON."""

    schema_version: Literal[1] = 1
    kind: Literal["dialogue_state"] = "dialogue_state"
    intercept: float
    weights: dict[str, float]
    thresholds: dict[str, Threshold] = Field(default_factory=dict)
    run: dict[str, Any] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name results are stored under."""
        return "dialogue_state"

    @classmethod
    def fit(cls, examples: Sequence[TurnExample], c: float = C, least_turns: int = LEAST_TURNS) -> DialogueStateGate:
        """Learn from labelled turns (scikit-learn). Raises :class:`UserError` for a single class."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        known, labels = labelled("dialogue_state", examples)
        names, table = feature_table([dialogue_features(example) for example in known], least_turns)
        scaler = StandardScaler()
        values = scaler.fit_transform(table)
        model = LogisticRegression(C=c, max_iter=1000).fit(values, labels)
        slopes = model.coef_[0] / scaler.scale_
        weights = dict(zip(names, slopes.tolist(), strict=True))
        facts = {"turns": len(known), "positive": sum(labels), "c": c, "least_turns": least_turns}
        return cls(intercept=float(model.intercept_[0] - slopes @ scaler.mean_), weights=weights, run=facts)

    def score(self, examples: Sequence[TurnExample]) -> list[float]:
        """One score per turn, in their order."""
        return [probability(self.log_odds(example)) for example in examples]

    def log_odds(self, example: TurnExample) -> float:
        """What the score is the logistic function of."""
        features = dialogue_features(example)
        return self.intercept + math.fsum(self.weights.get(name, 0.0) * value for name, value in features.items())

    def save(self, folder: Path) -> None:
        """Write the folder's ``gate.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / CARD, json.dumps(self.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n")

    @staticmethod
    def load(folder: Path | str, dtype: str = "auto", device: str = "auto") -> DialogueStateGate:
        """Open a folder; ``dtype`` and ``device`` are for gates with a model. Raises :class:`UserError`."""
        data = read_json(folder)
        try:
            return DialogueStateGate.model_validate(data)
        except ValidationError as error:
            raise UserError(f"{at(Path(folder) / CARD)}: {one_line(error)}") from None
