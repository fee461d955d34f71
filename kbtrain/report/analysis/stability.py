"""Stability of labels under fewer sampled answers, and the sweep over tau (KBM, section 3.2).

Widths of intervals and hard labels that flip; retrievals saved, and their cost in accuracy, if only questions whose
indicator is not above tau are retrieved for; the answer groups of the least certain questions.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field

from kbtrain.answers.mask import gold_texts
from kbtrain.answers.thoughts import counted_answers
from kbtrain.labeling.distribution import INDICATORS, Indicator
from kbtrain.labeling.label import above, effect
from kbtrain.metrics.significance import newcombe, wilson
from kbtrain.prompts.kbm import query_text
from kbtrain.records import Question, SampleSet
from kbtrain.report.analysis.graded import GradedAnswers, RunningMean

SIZES = (5, 10, 20, 30)


@dataclass
class AtSize:
    """With the first I answers of every question that has at least 30 (or the run's number).

    Widths are of 95 % intervals. ``*_flips``: labels that differ from those of all answers; ``*_disagree``: labels of
    two disjoint sets of I answers that differ (only where 2 I answers are there). Certainties that are compared stand
    on the scale of I answers; ``certainty`` is the mean of the paper's value, which grows with I.
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
    """Over the questions with the most answers; ``largest`` is that number, ``fewer`` counts those skipped."""

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
        for size in self._sizes():
            self._at(self.sizes.setdefault(size, AtSize()), size, llm, rag)

    def _sizes(self) -> list[int]:
        return [size for size in SIZES if size < self.largest] + [self.largest]

    def _at(self, at: AtSize, size: int, llm: GradedAnswers, rag: GradedAnswers | None) -> None:
        part = llm.first(size)
        low, high = wilson(*part.counts)
        at.mastery_width.add(high - low)
        if part.certainty is not None:
            at.certainty.add(part.certainty)
        now, finally_ = self._labels(part, size), self._labels(llm.first(self.largest), size)
        at.known_flips.add(now[0] != finally_[0])
        if now[1] is not None and finally_[1] is not None:
            at.certain_flips.add(now[1] != finally_[1])
        if 2 * size <= self.largest:
            other = self._labels(GradedAnswers(llm.right[size : 2 * size], llm.group[size : 2 * size]), size)
            at.known_disagree.add(now[0] != other[0])
            if now[1] is not None and other[1] is not None:
                at.certain_disagree.add(now[1] != other[1])
        if rag is not None and None not in rag.right:
            low, high = newcombe(part.counts, rag.first(size).counts)
            at.benefit_width.add(high - low)
            at.effect_flips.add(_effect(part, rag.first(size)) != _effect(llm, rag))

    def _labels(self, answers: GradedAnswers, scale: int) -> tuple[bool, bool | None]:
        value = answers.certainty_at(scale)
        certain = None if value is None else above(value, self.tau_certainty)
        return (answers.mastery or 0.0) > self.tau_mastery, certain


def _effect(llm: GradedAnswers, rag: GradedAnswers) -> str:
    return effect(llm.mastery or 0.0, rag.mastery or 0.0)


TAUS = tuple(i / 20 for i in range(20))


@dataclass
class _AtTau:
    saved: RunningMean = field(default_factory=RunningMean)
    change: RunningMean = field(default_factory=RunningMean)


@dataclass(frozen=True)
class SweepRow:
    """``saved``: share of questions not retrieved for. ``change``: of expected accuracy against All-RAG."""

    tau: float
    saved: float
    change: float
    change_low: float | None
    change_high: float | None


@dataclass
class TauSweep:
    """The sweep of one indicator in two ways.

    ``same``: the answers that decide are also the ones that are counted, as in the paper; a question that was lucky
    is then kept and counted as good. ``held_out``: one half of the answers decides, the other half is counted, both
    ways round. Certainty stands on the scale of ``scale`` answers in both, for every question (None: of half of its
    own answers): at one tau, values on several scales would be cut at different places. Questions whose halves have
    fewer answers are skipped then.
    """

    scale: int | None = None
    same: dict[float, _AtTau] = field(default_factory=lambda: {tau: _AtTau() for tau in TAUS})
    held_out: dict[float, _AtTau] = field(default_factory=lambda: {tau: _AtTau() for tau in TAUS})

    def add(self, indicator: Indicator, llm: GradedAnswers, rag: GradedAnswers) -> None:
        """One question."""
        half = len(llm) // 2
        scale = half if self.scale is None else self.scale
        if indicator == "certainty" and half < scale:
            return

        def value(answers: GradedAnswers) -> float | None:
            return answers.mastery if indicator == "mastery" else answers.certainty_at(scale)

        _add(self.same, [(value(llm), _gap(llm, rag))])
        halves = [(value(llm.half(odd)), _gap(llm.half(not odd), rag)) for odd in (False, True)]
        _add(self.held_out, halves)

    @staticmethod
    def rows(by_tau: dict[float, _AtTau]) -> list[SweepRow]:
        """Savings and accuracy at each tau; empty without questions."""
        table = []
        for tau, at in by_tau.items():
            if at.saved.mean is not None and at.change.mean is not None:
                low, high = at.change.interval or (None, None)
                table.append(SweepRow(tau, at.saved.mean, at.change.mean, low, high))
        return table


def _gap(llm: GradedAnswers, rag: GradedAnswers) -> float | None:
    """Change of accuracy by not retrieving."""
    without, with_retrieval = llm.mastery, rag.mastery
    return None if without is None or with_retrieval is None else without - with_retrieval


def _add(by_tau: dict[float, _AtTau], pairs: list[tuple[float | None, float | None]]) -> None:
    complete = [(value, gap) for value, gap in pairs if value is not None and gap is not None]
    if len(complete) < len(pairs):
        return
    for tau, at in by_tau.items():
        skipped = [gap for value, gap in complete if above(value, tau)]
        at.saved.add(len(skipped) / len(complete))
        at.change.add(sum(skipped) / len(complete))


def new_sweeps(answers: int | None = None) -> dict[Indicator, TauSweep]:
    """One for each indicator; ``answers``: the I that all questions have at least, see ``common_answers``."""
    scale = None if answers is None else max(2, answers // 2)
    return {indicator: TauSweep(scale) for indicator in INDICATORS}


SHOWN = 6  # groups of a question


@dataclass(frozen=True)
class Group:
    """Answers that count as the same; ``text`` is the first spelling. ``right`` None: a judge abstained."""

    text: str
    times: int
    right: bool | None


@dataclass(frozen=True)
class Spread:
    """One question's answers without retrieval: the largest groups, and how many groups there are in all."""

    question_id: str
    question: str
    gold: str
    certainty: float
    n_answers: int
    n_groups: int
    groups: tuple[Group, ...]


@dataclass
class LeastCertain:
    """Keeps the ``size`` questions with the lowest certainty; equal ones by question id.

    ``scale``: the I on which all certainties stand, those of fewer answers skipped; None: each on its own.
    """

    size: int
    scale: int | None = None
    _heap: list[tuple[float, tuple[int, ...], Spread]] = field(default_factory=list)

    def add(self, question: Question, stored: SampleSet, answers: GradedAnswers) -> None:
        """One question under ``llm``."""
        value = answers.certainty if self.scale is None else answers.certainty_at(self.scale)
        if value is None or self.size < 1:
            return
        # the heap's top is the first to go: the highest certainty, then the last id
        key = (-value, tuple(-ord(char) for char in question.id))
        if len(self._heap) < self.size:
            heapq.heappush(self._heap, (*key, spread(question, stored, answers, value)))
        elif key > self._heap[0][:2]:
            heapq.heapreplace(self._heap, (*key, spread(question, stored, answers, value)))

    def spreads(self) -> list[Spread]:
        """Least certain first."""
        return [result for _, _, result in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]


def spread(question: Question, stored: SampleSet, answers: GradedAnswers, certainty: float) -> Spread:
    """The answer groups of a question, largest first, equal ones by their key."""
    sizes = Counter(answers.group)
    order = sorted(sizes, key=lambda group: (-sizes[group], group))
    first = {group: i for i, group in reversed(list(enumerate(answers.group)))}
    counted = counted_answers(stored.samples)
    groups = tuple(
        Group(counted[first[group]].text.strip(), sizes[group], answers.right[first[group]]) for group in order[:SHOWN]
    )
    gold = " / ".join(gold_texts(question))
    return Spread(question.id, query_text(question), gold, certainty, len(answers), len(sizes), groups)
