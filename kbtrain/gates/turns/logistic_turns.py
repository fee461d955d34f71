"""What the logistic regressions on dialogue turns share: their labels, their score, and what a gate says of itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from kbtrain.errors import UserError
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
