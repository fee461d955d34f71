"""How stable labels are if fewer answers are sampled: widths of intervals, and hard labels that flip."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbtrain.labeling.effect import effect
from kbtrain.metrics.intervals import newcombe, wilson
from kbtrain.report.analysis.graded import GradedAnswers
from kbtrain.report.analysis.mean import RunningMean

SIZES = (5, 10, 20, 30)


@dataclass
class AtSize:
    """With the first I answers of every question that has at least 30 (or the run's number).

    Widths are of 95 % intervals. ``*_flips``: labels that differ from those of all answers; ``*_disagree``: labels of
    two disjoint sets of I answers that differ (only where 2 I answers are there).
    """

    mastery_width: RunningMean = field(default_factory=RunningMean)
    benefit_width: RunningMean = field(default_factory=RunningMean)
    certainty: RunningMean = field(default_factory=RunningMean)
    known_flips: RunningMean = field(default_factory=RunningMean)
    certain_flips: RunningMean = field(default_factory=RunningMean)
    effect_flips: RunningMean = field(default_factory=RunningMean)
    known_disagree: RunningMean = field(default_factory=RunningMean)
    certain_disagree: RunningMean = field(default_factory=RunningMean)


@dataclass
class Stability:
    """Over the questions with the most answers; ``largest`` is that number, ``fewer`` counts those left out."""

    largest: int
    tau_mastery: float
    tau_certainty: float
    sizes: dict[int, AtSize] = field(default_factory=dict)
    n: int = 0
    fewer: int = 0

    def add(self, llm: GradedAnswers, rag: GradedAnswers | None) -> None:
        """One question."""
        if len(llm) < self.largest or (rag is not None and len(rag) < self.largest) or None in llm.right:
            self.fewer += 1
            return
        self.n += 1
        for size in self._used():
            self._at(self.sizes.setdefault(size, AtSize()), size, llm, rag)

    def _used(self) -> list[int]:
        return [size for size in SIZES if size < self.largest] + [self.largest]

    def _at(self, at: AtSize, size: int, llm: GradedAnswers, rag: GradedAnswers | None) -> None:
        part = llm.first(size)
        low, high = wilson(*part.counts)
        at.mastery_width.add(high - low)
        at.certainty.add(part.certainty or 0.0)
        now, finally_ = self._labels(part), self._labels(llm.first(self.largest))
        at.known_flips.add(now[0] != finally_[0])
        at.certain_flips.add(now[1] != finally_[1])
        if 2 * size <= self.largest:
            other = self._labels(GradedAnswers(llm.right[size : 2 * size], llm.group[size : 2 * size]))
            at.known_disagree.add(now[0] != other[0])
            at.certain_disagree.add(now[1] != other[1])
        if rag is not None and None not in rag.right:
            low, high = newcombe(part.counts, rag.first(size).counts)
            at.benefit_width.add(high - low)
            at.effect_flips.add(_effect(part, rag.first(size)) != _effect(llm, rag))

    def _labels(self, answers: GradedAnswers) -> tuple[bool, bool]:
        return (answers.mastery or 0.0) > self.tau_mastery, (answers.certainty or 0.0) > self.tau_certainty


def _effect(llm: GradedAnswers, rag: GradedAnswers) -> str:
    return effect(llm.mastery or 0.0, rag.mastery or 0.0)
