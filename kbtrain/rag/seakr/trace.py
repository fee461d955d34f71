"""What SeaKR did for one question, step by step, so that a person can follow every decision."""

from __future__ import annotations

from dataclasses import dataclass


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

    ``query`` is None where U did not exceed the threshold; ``sentence`` is what went on into the rationale (the
    aided one after a search; None if the step was dropped).
    """

    text: str
    uncertainty: float
    query: str | None
    candidates: tuple[Candidate, ...]
    sentence: str | None


@dataclass(frozen=True)
class Strategy:
    """One way to the answer: ``direct``, ``document``, ``final sentence``, ``rationales`` (A) or ``documents`` (B)."""

    name: str
    answer: str
    uncertainty: float
    chosen: bool


@dataclass(frozen=True)
class Spent:
    """What a question cost, each on its own. ``passages`` counts the passages a search returned and a prompt read,
    once for each prompt; ``requests`` are prompts, each with one greedy answer and ``samples`` / ``requests`` others.
    ``tokens`` were generated, ``prompt_tokens`` read. ``seconds``: its share of the batches it was in."""

    searches: int = 0
    passages: int = 0
    requests: int = 0
    samples: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Trace:
    """One question. ``stopped`` says why the loop ended; ``error`` why there is no answer (then it is empty).

    ``correct`` is by the question's own grading; ``exact_match`` and ``f1`` are the best over its accepted answers.
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
        """Whether anything was searched for."""
        return self.spent.searches > 0
