"""What the labels say about the model's knowledge: histograms, the panels of KBM's figure 3, the sweep over tau."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

from kbtrain.records import Condition, Effect, Label

Indicator = Literal["mastery", "certainty"]
INDICATORS: tuple[Indicator, ...] = get_args(Indicator)
EFFECTS: tuple[Effect, ...] = get_args(Effect)
INTERVALS = 5  # of figure 3: [0, 0.2), ..., [0.8, 1]
BINS = 10  # of the histograms
TAUS = tuple(i / 10 for i in range(10))


@dataclass
class LabelStatistics:
    """Counts over the labels of one split; memory does not grow with their number.

    ``panels[indicator, condition, interval, effect]`` counts questions by the interval their indicator lies in under
    the condition, and by the effect of retrieval on that indicator. ``kept[i]`` and ``answered[i]``: questions whose
    mastery without retrieval is above ``TAUS[i]``, and the sum of masteries if only the others are retrieved for.
    """

    split: str = "all splits"
    n: int = 0
    n_with_rag: int = 0
    n_certainty: int = 0  # labels from one greedy answer have none
    tau_mastery: float = 0.0
    tau_certainty: float = 0.0
    histograms: Counter[tuple[Indicator, Condition, int]] = field(default_factory=Counter)
    panels: Counter[tuple[Indicator, Condition, int, Effect]] = field(default_factory=Counter)
    kept: list[int] = field(default_factory=lambda: [0] * len(TAUS))
    answered: list[float] = field(default_factory=lambda: [0.0] * len(TAUS))
    rag_mastery: float = 0.0
    _moments: list[float] = field(default_factory=lambda: [0.0] * 5)

    def add(self, label: Label) -> None:
        """Count one label."""
        self.n += 1
        self.tau_mastery, self.tau_certainty = label.tau_mastery, label.tau_certainty
        m, c = label.llm.mastery, label.llm.certainty
        if c is not None:
            self.n_certainty += 1
            self._moments = [a + b for a, b in zip(self._moments, (m, c, m * m, c * c, m * c), strict=True)]
        for found in (label.llm, label.rag, label.mask):
            if found is None:
                continue
            self._place("mastery", found.condition, found.mastery, label.effect_mastery)
            self._place("certainty", found.condition, found.certainty, label.effect_certainty)
        if label.rag is not None:
            self._sweep(m, label.rag.mastery)

    def _place(self, indicator: Indicator, condition: Condition, value: float | None, effect: Effect | None) -> None:
        if value is None:
            return
        self.histograms[indicator, condition, interval(value, BINS)] += 1
        if effect is not None:
            self.panels[indicator, condition, interval(value, INTERVALS), effect] += 1

    def _sweep(self, llm: float, rag: float) -> None:
        self.n_with_rag += 1
        self.rag_mastery += rag
        for i, tau in enumerate(TAUS):
            self.kept[i] += llm > tau
            self.answered[i] += llm if llm > tau else rag

    def count(self, indicator: Indicator, condition: Condition) -> int:
        """How many questions were sampled under a condition."""
        return sum(self.histograms[indicator, condition, i] for i in range(BINS))

    def pearson(self) -> float | None:
        """Correlation of mastery and certainty without retrieval (KBM, section 3.2: 0.64); None if one is constant."""
        m, c, mm, cc, mc = (total / self.n_certainty for total in self._moments) if self.n_certainty else [0.0] * 5
        spread = (mm - m * m) * (cc - c * c)
        return (mc - m * c) / math.sqrt(spread) if spread > 1e-12 else None

    def sweep(self) -> list[tuple[float, float, float]]:
        """(tau, share of retrievals saved, change of expected accuracy against All-RAG) of section 3.2."""
        n = self.n_with_rag
        rows = zip(TAUS, self.kept, self.answered, strict=True) if n else ()
        return [(tau, kept / n, (answered - self.rag_mastery) / n) for tau, kept, answered in rows]


def interval(value: float, parts: int) -> int:
    """Which of ``parts`` equal intervals of [0, 1] a value lies in; the last one is closed."""
    return min(parts - 1, int(value * parts + 1e-9))  # 0.3 * 10 is a little less than 3


def statistics(labels: Iterable[Label]) -> LabelStatistics:
    """Over the labels of the train split; over all if there are none (they may have been sampled for dev only)."""
    train, everything = LabelStatistics("train"), LabelStatistics()
    for label in labels:
        everything.add(label)
        if label.split == "train":
            train.add(label)
    return train if train.n else everything
