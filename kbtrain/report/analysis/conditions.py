"""Accuracy without retrieval, with it, and with the answers masked (KBM, figure 1), on the same questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from kbtrain.metrics.significance import wilson
from kbtrain.records import Condition, SampleSet
from kbtrain.report.analysis.graded import GradedAnswers, RunningMean


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
            tally = self.conditions[condition]
            for mean, value in ((tally.sampled, graded.mastery), (tally.certainty, graded.certainty)):
                if value is not None:
                    mean.add(value)
        for condition, right in greedy.items():
            tally = self.conditions[condition]
            tally.greedy_abstained += right is None
            tally.greedy_n += right is not None
            tally.greedy_right += right is True


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
