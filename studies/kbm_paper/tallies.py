"""Tallies of one pass over a run's graded answers, the input of every analysis (KBM, figures 1 to 3 and section 3.2).

Accuracy without retrieval, with it, and with the answers masked, on the same questions; labels under fewer sampled
answers; retrievals saved, and their cost in accuracy, if only questions whose indicator is not above tau are retrieved
for; the answer groups of the least certain questions.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import regex

from kbtrain.answers import grading
from kbtrain.answers.mask import MASK, gold_texts
from kbtrain.answers.thoughts import counted_answers
from kbtrain.answers.writing import CJK, UNSPACED
from kbtrain.labeling.distribution import INDICATORS, Indicator
from kbtrain.labeling.indicators import MAX_EMPTY, above, certainty, group_sizes
from kbtrain.labeling.label import effect
from kbtrain.metrics.significance import Z95, newcombe, wilson
from kbtrain.prompts.kbm import query_text
from kbtrain.records import Condition, Question, SampleSet


@dataclass(frozen=True)
class GradedAnswers:
    """Verdict (or None) and group of each counted answer, in the order of the sample indices."""

    right: tuple[bool | None, ...]
    group: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.right)

    def first(self, n: int) -> GradedAnswers:
        """The first ``n`` answers."""
        return GradedAnswers(self.right[:n], self.group[:n])

    def half(self, odd: bool) -> GradedAnswers:
        """Every second answer: two disjoint halves."""
        return GradedAnswers(self.right[odd::2], self.group[odd::2])

    @property
    def counts(self) -> tuple[int, int]:
        """(right, graded)."""
        return sum(r is True for r in self.right), sum(r is not None for r in self.right)

    @property
    def mastery(self) -> float | None:
        """Share of right answers; None if none was graded."""
        right, n = self.counts
        return right / n if n else None

    @property
    def certainty(self) -> float | None:
        """KBM, section 3.2; None for fewer than two answers, or where more than half of them are empty."""
        return self.certainty_at(len(self))

    def certainty_at(self, scale: int) -> float | None:
        """Certainty on the scale of ``scale`` answers, as :attr:`certainty`; None also where fewer are there."""
        if scale < 2 or len(self) < scale or self.group.count("") > MAX_EMPTY * len(self):
            return None
        return certainty(group_sizes(self.group), scale)


def graded_answers(question: Question, answers: SampleSet, verdicts: grading.Verdicts | None = None) -> GradedAnswers:
    """Grade each sampled answer that is not skipped, each distinct text once."""
    by_text: dict[str, tuple[bool | None, str]] = {}
    counted = counted_answers(answers.samples)
    for sample in counted:
        if sample.text not in by_text:
            right = grading.graded(question, sample.text, verdicts)
            by_text[sample.text] = right, grading.group_key(question, sample.text)
    rows = [by_text[sample.text] for sample in counted]
    return GradedAnswers(tuple(right for right, _ in rows), tuple(group for _, group in rows))


@dataclass
class RunningMean:
    """Sums of values and of their squares; the interval is the normal one over questions. None is not counted."""

    n: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float | None) -> None:
        if value is None:
            return
        self.n += 1
        self.total += value
        self.squares += value * value

    @property
    def mean(self) -> float | None:
        return self.total / self.n if self.n else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """None for fewer than two values."""
        if self.n < 2:
            return None
        mean = self.total / self.n
        variance = max(0.0, self.squares / self.n - mean * mean) * self.n / (self.n - 1)
        half = Z95 * math.sqrt(variance / self.n)
        return mean - half, mean + half


@dataclass
class ConditionAccuracy:
    """One condition over the questions that were answered under all conditions of the run.

    ``sampled``: mean mastery, the expected accuracy of one sampled answer. ``cut``: prompts that lost evidence from
    their tail, ``cut_tokens`` how much in all; these two count every stored question.
    """

    greedy_right: int = 0
    greedy_n: int = 0
    greedy_abstained: int = 0
    sampled: RunningMean = field(default_factory=RunningMean)
    certainty: RunningMean = field(default_factory=RunningMean)
    stored: int = 0
    cut: int = 0
    cut_tokens: int = 0

    @property
    def greedy(self) -> tuple[float, float, float] | None:
        """Share of right greedy answers with Wilson's interval; None without any."""
        if not self.greedy_n:
            return None
        return (self.greedy_right / self.greedy_n, *wilson(self.greedy_right, self.greedy_n))


@dataclass
class Accuracies:
    """All conditions of a run. ``n`` questions have answers under all of them; ``left_out`` have under some only."""

    wanted: frozenset[Condition]
    n: int = 0
    left_out: int = 0
    conditions: dict[Condition, ConditionAccuracy] = field(default_factory=dict)

    def add(
        self,
        sets: Mapping[Condition, SampleSet],
        answers: Mapping[Condition, GradedAnswers],
        greedy: Mapping[Condition, bool | None],
    ) -> None:
        """One question; ``greedy`` has the conditions with a greedy answer (None: a judge abstained)."""
        for condition, stored in sets.items():
            tally = self.conditions.setdefault(condition, ConditionAccuracy())
            tally.stored += 1
            tally.cut += stored.evidence_cut > 0
            tally.cut_tokens += stored.evidence_cut
        if self.wanted - set(sets):
            self.left_out += 1
            return
        self.n += 1
        for condition, graded in answers.items():
            self.conditions[condition].sampled.add(graded.mastery)
            self.conditions[condition].certainty.add(graded.certainty)
        for condition, right in greedy.items():
            tally = self.conditions[condition]
            tally.greedy_abstained += right is None
            tally.greedy_n += right is not None
            tally.greedy_right += right is True


_LETTER = rf"[^\W_{CJK}{UNSPACED}]"  # of a script with spaces between words


def is_mask(answer: str) -> bool:
    """True if an answer is ``MASK``, copied from the evidence (figure 2): the word in capitals, also with others around
    it ("the MASK", "MASK市"), or nothing but "mask"."""
    copied = regex.search(rf"(?<!{_LETTER}){MASK}(?!{_LETTER})", answer) is not None
    return copied or regex.sub(r"[\W_]", "", answer).casefold() == MASK.casefold()


@dataclass
class Copying:
    """Figure 2: outputs that are MASK among the questions with certainty 1 under ``mask``.

    ``n_certain`` questions have one answer in all samples, in ``n_copied`` of them it is MASK. ``outputs`` counts all
    sampled answers under ``mask``, ``mask_outputs`` those that are MASK. ``leaking`` questions show an answer through
    the mask, ``certain_without_leak`` and ``copied_without_leak`` leave them out.
    """

    n_questions: int = 0
    n_certain: int = 0
    n_copied: int = 0
    outputs: int = 0
    mask_outputs: int = 0
    leaking: int = 0
    certain_without_leak: int = 0
    copied_without_leak: int = 0
    leaks: Counter[str] = field(default_factory=Counter)  # the answers that show through -> questions

    def add(self, answers: GradedAnswers, copied: int, leak: tuple[str, ...]) -> None:
        """One question with ``copied`` of its sampled answers being MASK."""
        certain = answers.certainty == 1
        self.n_questions += 1
        self.outputs += len(answers)
        self.mask_outputs += copied
        self.leaking += bool(leak)
        self.leaks.update(leak)
        self.n_certain += certain
        self.n_copied += certain and copied > 0
        self.certain_without_leak += certain and not leak
        self.copied_without_leak += certain and not leak and copied > 0

    @property
    def share(self) -> tuple[float, float, float] | None:
        """Figure 2's share with Wilson's interval; None if no question has certainty 1."""
        if not self.n_certain:
            return None
        return (self.n_copied / self.n_certain, *wilson(self.n_copied, self.n_certain))


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
        for size in (*(size for size in SIZES if size < self.largest), self.largest):
            at, part = self.sizes.setdefault(size, AtSize()), llm.first(size)
            low, high = wilson(*part.counts)
            at.mastery_width.add(high - low)
            at.certainty.add(part.certainty)
            mastered, certain = self._labels(part, size)
            mastered_at_end, certain_at_end = self._labels(llm.first(self.largest), size)
            at.known_flips.add(mastered != mastered_at_end)
            at.certain_flips.add(_differ(certain, certain_at_end))
            if 2 * size <= self.largest:
                other = GradedAnswers(llm.right[size : 2 * size], llm.group[size : 2 * size])
                other_mastered, other_certain = self._labels(other, size)
                at.known_disagree.add(mastered != other_mastered)
                at.certain_disagree.add(_differ(certain, other_certain))
            if rag is not None and None not in rag.right:
                low, high = newcombe(part.counts, rag.first(size).counts)
                at.benefit_width.add(high - low)
                at.effect_flips.add(_effect(part, rag.first(size)) != _effect(llm, rag))

    def _labels(self, answers: GradedAnswers, scale: int) -> tuple[bool, bool | None]:
        value = answers.certainty_at(scale)
        certain = None if value is None else above(value, self.tau_certainty)
        return (answers.mastery or 0.0) > self.tau_mastery, certain


def _differ(first: bool | None, second: bool | None) -> bool | None:
    return None if first is None or second is None else first != second


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
        return [
            SweepRow(tau, at.saved.mean, at.change.mean, *(at.change.interval or (None, None)))
            for tau, at in by_tau.items()
            if at.saved.mean is not None and at.change.mean is not None
        ]


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
    _least: list[tuple[tuple[float, str], Spread]] = field(default_factory=list)

    def add(self, question: Question, stored: SampleSet, answers: GradedAnswers) -> None:
        """One question under ``llm``."""
        value = answers.certainty if self.scale is None else answers.certainty_at(self.scale)
        if value is None or self.size < 1:
            return
        key = (value, question.id)
        if len(self._least) < self.size or key < self._least[-1][0]:
            insort(self._least, (key, answer_groups(question, stored, answers, value)), key=lambda entry: entry[0])
            del self._least[self.size :]

    def spreads(self) -> list[Spread]:
        """Least certain first."""
        return [spread for _, spread in self._least]


def answer_groups(question: Question, stored: SampleSet, answers: GradedAnswers, certainty: float) -> Spread:
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
