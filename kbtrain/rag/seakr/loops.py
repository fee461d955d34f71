"""SeaKR's multi-hop loop (section 3.2): a sentence at a time, searching whenever the model is not sure of the next.

It keeps two buffers: the documents that were kept, and the rationale, one sentence for each step.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import cast

from kbtrain.prompts.seakr import final_answer, first_sentence
from kbtrain.rag.seakr.query import build_query
from kbtrain.rag.seakr.self_aware import Granted, Outcome, SelfAwareSettings, Talk, Wish, choose, rank, strategy
from kbtrain.rag.seakr.thinking import Ask, Reply
from kbtrain.rag.seakr.trace import Candidate, Step, Strategy
from kbtrain.records import Hit, Question


class _Buffers:
    """A question's state: kept documents, rationale, steps for the trace, queries that were made."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.kept: list[Hit] = []
        self.rationales: list[str] = []
        self.steps: list[Step] = []
        self.queries: set[str] = set()
        self.final: Strategy | None = None

    def ask(self, name: str, extra: tuple[Hit, ...] = ()) -> Ask:
        documents = (*self.kept, *extra)
        return Ask(
            f"{self.question.id}/{len(self.steps)}/{name}", self.question.text, documents, tuple(self.rationales)
        )

    def take(self, sentence: str, uncertainty: float) -> bool:
        """Append a sentence to the rationale; True if it was the final one, which is kept apart."""
        answer = final_answer(sentence)
        if answer is not None:
            self.final = Strategy("final sentence", answer, uncertainty, False)
        elif sentence:
            self.rationales.append(sentence)
        return answer is not None


def multi_hop(question: Question, settings: SelfAwareSettings) -> Talk:
    """One question to its answer: yields prompts and queries, is sent replies and hits (see :mod:`.lockstep`)."""
    buffers, stopped = _Buffers(question), f"{settings.max_steps} steps"
    for _ in range(settings.max_steps):
        reason = yield from _step(buffers, settings)
        if reason is not None:
            stopped = reason
            break
    strategies = yield from _strategies(buffers, settings)
    answer, weighed = choose(strategies)
    return Outcome(answer, stopped, buffers.steps, weighed)


def _step(buffers: _Buffers, settings: SelfAwareSettings) -> Generator[Wish, Granted, str | None]:
    """One sentence; returns why the loop ends, or None."""
    (reply,) = cast(list[Reply], (yield [buffers.ask("sentence")]))
    sentence, u = first_sentence(reply.thought.text), reply.thought.uncertainty
    if final_answer(sentence) is not None or u <= settings.threshold:
        done = buffers.take(sentence, u)
        buffers.steps.append(Step(sentence, u, None, (), sentence))
        return "final answer" if done else None if sentence else "empty sentence"
    query = build_query(reply.thought.pieces, sentence, buffers.question.text, settings.word_confidence)
    repeated = query.lower() in buffers.queries
    buffers.queries.add(query.lower())
    hits = () if repeated else cast(tuple[Hit, ...], (yield (query, settings.documents)))
    kept = {hit.passage_id for hit in buffers.kept}
    new = tuple(hit for hit in hits if hit.passage_id not in kept)
    if not new:
        buffers.steps.append(Step(sentence, u, query, (), None))
        return "repeated query" if repeated else "no new document" if hits else "nothing found"
    return (yield from _aided(buffers, settings, (sentence, u, query), new))


def _aided(
    buffers: _Buffers, settings: SelfAwareSettings, dropped: tuple[str, float, str], new: tuple[Hit, ...]
) -> Generator[Wish, Granted, str | None]:
    """The sentence that the best new document leads to; the document is kept."""
    tried = new if settings.rerank else new[:1]
    replies = cast(list[Reply], (yield [buffers.ask(hit.passage_id, (hit,)) for hit in tried]))
    best, candidates = rank(tried, replies)
    if not settings.rerank:
        candidates += tuple(Candidate(h.passage_id, h.title, h.text, "", None, False) for h in new[1:])
    buffers.kept.append(tried[best])
    sentence = first_sentence(replies[best].thought.text)
    done = buffers.take(sentence, replies[best].thought.uncertainty)
    text, u, query = dropped
    buffers.steps.append(Step(text, u, query, candidates, sentence))
    if done:
        return "final answer"
    return f"{settings.max_documents} documents" if len(buffers.kept) >= settings.max_documents else None


def _strategies(buffers: _Buffers, settings: SelfAwareSettings) -> Generator[Wish, Granted, list[Strategy]]:
    """The ways to the answer: A from the rationales, B from the kept documents, or the loop's own final sentence."""
    name, text = buffers.question.id, buffers.question.text
    if not settings.reason and buffers.final is not None:
        return [buffers.final]
    asks = [Ask(f"{name}/rationales", text, (), tuple(buffers.rationales), answer=True)]
    if settings.reason and buffers.kept:
        asks.append(Ask(f"{name}/documents", text, tuple(buffers.kept), (), answer=True))
    replies = cast(list[Reply], (yield asks))
    return [strategy(way, reply) for way, reply in zip(("rationales", "documents"), replies, strict=False)]
