"""Self-aware re-ranking and reasoning (SeaKR, sections 3.2 and 3.3): of several ways, the one with the lowest U."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from kbtrain.answers.grading import normalise
from kbtrain.prompts.seakr import clean_answer, first_sentence
from kbtrain.rag.seakr.thinking import Ask, Reply
from kbtrain.rag.seakr.trace import Candidate, Step, Strategy
from kbtrain.records import Hit

Search = tuple[str, int]  # query, k
Wish = list[Ask] | Search
Granted = list[Reply] | tuple[Hit, ...]
Talk = Generator[Wish, Granted, "Outcome"]
"""A question being worked on: it yields what it wants (replies, or hits for a query) and is sent what it gets."""

_UNKNOWN = {
    "unknown", "not known", "unclear", "not clear", "none", "n a", "na", "no answer", "not mentioned",
    "not specified", "not stated", "not given", "not provided", "not available", "cannot be determined",
    "can not be determined", "i do not know", "i don t know", "unanswerable",
}  # fmt: skip


@dataclass(frozen=True)
class SelfAwareSettings:
    """``documents``: N of a search; ``max_steps`` and ``max_documents`` end the multi-hop loop (paper: 3, 7, 5).

    ``rerank`` False keeps the best hit of the search; ``reason`` False answers from the rationales alone.
    ``word_confidence``: probability from which a word of an uncertain sentence goes into the query.
    """

    threshold: float
    documents: int = 3
    rerank: bool = True
    reason: bool = True
    max_steps: int = 7
    max_documents: int = 5
    word_confidence: float = 0.4


@dataclass
class Outcome:
    """What a finished talk found."""

    answer: str
    stopped: str
    steps: list[Step] = field(default_factory=list)
    strategies: list[Strategy] = field(default_factory=list)


def is_missing(answer: str) -> bool:
    """Whether an answer says nothing, or that it does not know."""
    key = normalise(answer)
    return not key.strip(". ") or key in _UNKNOWN


def rank(hits: Sequence[Hit], replies: Sequence[Reply]) -> tuple[int, tuple[Candidate, ...]]:
    """The document whose sentence is the least uncertain (of equal ones the search's best), and all candidates."""
    us = [reply.thought.uncertainty for reply in replies]
    best = us.index(min(us))
    candidates = tuple(
        Candidate(hit.passage_id, hit.title, hit.text, first_sentence(reply.thought.text), u, i == best)
        for i, (hit, reply, u) in enumerate(zip(hits, replies, us, strict=True))
    )
    return best, candidates


def choose(strategies: Sequence[Strategy]) -> tuple[str, list[Strategy]]:
    """The answer of the lowest U among those that are not missing; all missing: an empty answer, none chosen."""
    known = [s for s in strategies if not is_missing(s.answer)]
    if not known:
        return "", list(strategies)
    best = min(known, key=lambda s: s.uncertainty)
    return best.answer, [Strategy(s.name, s.answer, s.uncertainty, s is best) for s in strategies]


def strategy(name: str, reply: Reply) -> Strategy:
    """A reply to an ask for the answer, as one way to it."""
    return Strategy(name, clean_answer(reply.thought.text), reply.thought.uncertainty, False)
