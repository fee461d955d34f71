"""Traces of SeaKR: every step and decision for one question, one a line in a run folder's files of pipelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from kbtrain.answers.grading import exact_match, is_correct, token_f1
from kbtrain.records import Question

FOLDER = "methods"  # of a run folder: one <name>.jsonl of traces for each pipeline that was run


@dataclass(frozen=True)
class Candidate:
    """A document that was tried: the sentence (or answer) it led to and how uncertain that was.

    ``uncertainty`` None: it was taken without trying (re-ranking is off).
    """

    passage_id: str
    title: str
    text: str
    sentence: str
    uncertainty: float | None
    kept: bool


@dataclass(frozen=True)
class Step:
    """One step: the text the model gave unaided, its U, and what followed.

    ``query`` is None where U did not exceed the threshold; ``sentence`` is what entered the rationale (the
    aided one after a search; None if the step was dropped).
    """

    text: str
    uncertainty: float
    query: str | None
    candidates: tuple[Candidate, ...]
    sentence: str | None


@dataclass(frozen=True)
class Strategy:
    """One way to the answer: ``direct``, ``document``, ``rationales`` (A) or ``documents`` (B, with a ``chain`` of its
    own sentences). ``uncertainty`` is that of the answer, behind all that was said before it."""

    name: str
    answer: str
    uncertainty: float
    chosen: bool
    chain: tuple[str, ...] = ()


@dataclass(frozen=True)
class Spent:
    """Cost of a question, itemised. ``passages`` counts the passages that a search returned and a prompt read, once for
    each prompt; ``requests`` are prompts, each with one greedy answer, and all but chains with samples. ``tokens``
    were generated, ``prompt_tokens`` read. ``seconds``: its share of the batches it was in."""

    searches: int = 0
    passages: int = 0
    requests: int = 0
    samples: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Trace:
    """One question. ``stopped`` says why the loop ended, ``error`` why the answer is missing and empty.

    ``correct`` is by the question's own grading; ``exact_match`` and ``f1`` are the best over its reference answers.
    All three are by the rules of the day it was made: who reads a stored trace grades it again (:func:`grades`).
    ``empty_samples`` said nothing; ``document_tokens_cut`` found no room in a prompt.
    """

    question_id: str
    question: str
    answers: tuple[str, ...]
    method: str
    threshold: float
    steps: tuple[Step, ...]
    strategies: tuple[Strategy, ...]
    stopped: str
    answer: str
    correct: bool
    exact_match: float
    f1: float
    spent: Spent
    empty_samples: int = 0
    document_tokens_cut: int = 0
    error: str | None = None

    @property
    def retrieved(self) -> bool:
        """True if there was a search."""
        return self.spent.searches > 0


def grades(question: Question, answer: str) -> dict[str, Any]:
    """``correct``, ``exact_match`` and ``f1`` of an answer by today's rules."""
    return {
        "correct": is_correct(question, answer),
        "exact_match": exact_match(answer, question.answers),
        "f1": token_f1(answer, question.answers),
    }


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
        cost = ", ".join(f"{name.replace('_', ' ')} {value:,.0f}" for name, value in self.spent.items())
        return (
            f"{self.n} questions, right {self.correct:.3f}, EM {self.exact_match:.3f}, F1 {self.f1:.3f}, searches "
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
    grades_of = ("correct", "exact_match", "f1")
    return Summary(
        n=n, **{name: sum(getattr(t, name) for t in graded) / max(len(graded), 1) for name in grades_of},
        retrieved=sum(t.retrieved for t in traces) / n,
        spent={name: sum(getattr(t.spent, name) for t in traces) for name in names},
        stopped=dict(Counter(t.stopped for t in traces).most_common()), errors=sum(t.error is not None for t in traces),
        empty_samples=sum(t.empty_samples for t in traces),
        document_tokens_cut=sum(t.document_tokens_cut for t in traces), without_gold=n - len(graded),
    )  # fmt: skip
