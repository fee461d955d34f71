"""Counts over labels for the KBM paper's figure 3: indicators by interval, and the effect of retrieval on each."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from kbtrain.labeling.distribution import Indicator, indicator_values, interval
from kbtrain.records import Condition, Effect, Label

INTERVALS = 5  # of figure 3: [0, 0.2), ..., [0.8, 1]


@dataclass
class LabelStatistics:
    """Counts over the labels of one split; memory does not grow with their number.

    ``panels[indicator, condition, interval, effect]`` counts questions by the interval their indicator lies in under
    the condition, and by the effect of retrieval on that indicator.
    """

    tau_mastery: float
    tau_certainty: float
    n_certainty: int = 0  # labels with both: one greedy answer has no certainty, no gold answer no mastery
    panels: Counter[tuple[Indicator, Condition, int, Effect]] = field(default_factory=Counter)
    _moments: list[float] = field(default_factory=lambda: [0.0] * 5)

    def add(self, label: Label) -> None:
        """Count one label."""
        m, c = label.llm.mastery, label.llm.certainty
        if m is not None and c is not None:
            self.n_certainty += 1
            self._moments = [a + b for a, b in zip(self._moments, (m, c, m * m, c * c, m * c), strict=True)]
        for indicator, condition, value in indicator_values(label):
            effect = label.effect_mastery if indicator == "mastery" else label.effect_certainty
            if effect is not None:
                self.panels[indicator, condition, interval(value, INTERVALS), effect] += 1

    def compared(self, indicator: Indicator, condition: Condition) -> int:
        """Number of questions in a panel: with the indicator under the condition, and with retrieval's effect on it."""
        return sum(n for (*which, _, _), n in self.panels.items() if which == [indicator, condition])

    def pearson(self) -> float | None:
        """Correlation of mastery and certainty without retrieval (KBM, section 3.2: 0.64); None if one is constant."""
        m, c, mm, cc, mc = (total / self.n_certainty for total in self._moments) if self.n_certainty else [0.0] * 5
        spread = (mm - m * m) * (cc - c * c)
        return (mc - m * c) / math.sqrt(spread) if spread > 1e-12 else None
