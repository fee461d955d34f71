"""Traces of SeaKR as one HTML page that a person can read: inline styles, no script, nothing loaded, all escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

from kbtrain.rag.seakr_traces import Spent, Trace
from kbtrain.report.page import render

SHOWN = 200  # characters of a document that are not folded away


@dataclass(frozen=True)
class Summary:
    """Means over all questions, and why they stopped; a question with an error counts as answered wrongly.

    ``correct``, ``exact_match`` and ``f1`` skip the ``without_gold`` questions, which nothing can grade.
    """

    n: int
    correct: float
    exact_match: float
    f1: float
    retrieved: float
    spent: dict[str, float]
    stopped: dict[str, int]
    errors: int
    empty_samples: int
    document_tokens_cut: int
    without_gold: int = 0

    def line(self) -> str:
        """All of it in one line."""
        cost = ", ".join(f"{name.replace('_', ' ')} {value:,.0f}" for name, value in self.spent.items())
        return (
            f"{self.n} questions, right {self.correct:.3f}, EM {self.exact_match:.3f}, F1 {self.f1:.3f}, searched for "
            f"{self.retrieved:.0%}; {cost}; errors {self.errors}, empty samples {self.empty_samples}, document tokens "
            f"cut {self.document_tokens_cut}" + (f", without gold {self.without_gold}" if self.without_gold else "")
        )


def summarise(traces: Sequence[Trace]) -> Summary:
    """Raises ``ValueError`` without traces."""
    n = len(traces)
    if not n:
        raise ValueError("no trace to summarise")
    graded = [trace for trace in traces if trace.answers]
    names = [part.name for part in fields(Spent)]
    return Summary(
        n=n,
        correct=sum(t.correct for t in graded) / max(len(graded), 1),
        exact_match=sum(t.exact_match for t in graded) / max(len(graded), 1),
        f1=sum(t.f1 for t in graded) / max(len(graded), 1),
        retrieved=sum(t.retrieved for t in traces) / n,
        spent={name: sum(getattr(t.spent, name) for t in traces) for name in names},
        stopped=dict(Counter(t.stopped for t in traces).most_common()),
        errors=sum(t.error is not None for t in traces),
        empty_samples=sum(t.empty_samples for t in traces),
        document_tokens_cut=sum(t.document_tokens_cut for t in traces),
        without_gold=n - len(graded),
    )


def render_traces(traces: Sequence[Trace], title: str, limit: int = 200) -> str:
    """The page; questions beyond ``limit`` are only counted in the summary, which the page states."""
    return render(
        "traces.html.j2",
        autoescape=True,
        title=title,
        traces=traces[:limit],
        left_out=max(0, len(traces) - limit),
        summary=summarise(traces),
        threshold=traces[0].threshold,
        method=traces[0].method,
        shown=SHOWN,
    )
