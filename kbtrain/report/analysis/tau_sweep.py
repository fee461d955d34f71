"""Section 3.2's sweep: retrieve only where the indicator is not above tau; what is saved, and what does it cost?"""

from __future__ import annotations

from dataclasses import dataclass, field

from kbtrain.report.analysis.graded import GradedAnswers
from kbtrain.report.analysis.mean import RunningMean
from kbtrain.report.label_statistics import INDICATORS, Indicator

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
    ways round.
    """

    same: dict[float, _AtTau] = field(default_factory=lambda: {tau: _AtTau() for tau in TAUS})
    held_out: dict[float, _AtTau] = field(default_factory=lambda: {tau: _AtTau() for tau in TAUS})

    def add(self, indicator: Indicator, llm: GradedAnswers, rag: GradedAnswers) -> None:
        """One question."""
        _add(self.same, [(getattr(llm, indicator), _gap(llm, rag))])
        halves = [(getattr(llm.half(odd), indicator), _gap(llm.half(not odd), rag)) for odd in (False, True)]
        _add(self.held_out, halves)

    @staticmethod
    def rows(found: dict[float, _AtTau]) -> list[SweepRow]:
        """What was found at each tau; empty without questions."""
        made = []
        for tau, at in found.items():
            if at.saved.mean is not None and at.change.mean is not None:
                low, high = at.change.interval or (None, None)
                made.append(SweepRow(tau, at.saved.mean, at.change.mean, low, high))
        return made


def _gap(llm: GradedAnswers, rag: GradedAnswers) -> float | None:
    """What not retrieving changes."""
    without, with_retrieval = llm.mastery, rag.mastery
    return None if without is None or with_retrieval is None else without - with_retrieval


def _add(found: dict[float, _AtTau], pairs: list[tuple[float | None, float | None]]) -> None:
    known = [(value, gap) for value, gap in pairs if value is not None and gap is not None]
    if len(known) < len(pairs):
        return
    for tau, at in found.items():
        at.saved.add(sum(value > tau for value, _ in known) / len(known))
        at.change.add(sum(gap for value, gap in known if value > tau) / len(known))


def new_sweeps() -> dict[Indicator, TauSweep]:
    """One for each indicator."""
    return {indicator: TauSweep() for indicator in INDICATORS}
