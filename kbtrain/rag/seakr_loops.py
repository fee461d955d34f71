"""SeaKR's two pipelines: the single-hop rule and the multi-hop loop (section 3.2), with self-aware re-ranking (3.3).

Single hop: answer directly if certain, else with the document that leaves the least uncertainty U. Multi-hop: generate
a sentence at a time and search whenever the next one is uncertain; two buffers hold the documents used so far and the
rationale, one sentence for each step. A query is built from the words of the uncertain sentence that are certain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import regex

from kbtrain.answers.missing import is_missing, states_nothing
from kbtrain.answers.writing import CJK
from kbtrain.prompts.seakr import chain, clean_answer, final_answer, first_sentence
from kbtrain.rag.seakr_lockstep import Exchange, GenerationRequest, PipelineOutcome, QuestionCoroutine, Reply
from kbtrain.rag.seakr_traces import Candidate, Step, Strategy
from kbtrain.records import Hit, Question


@dataclass(frozen=True)
class SelfAwareSettings:
    """``documents``: N of a search; ``max_steps`` and ``max_documents`` end the multi-hop loop (paper: 3, 7, 5).

    ``rerank`` False keeps the best hit of the search; ``reason`` False answers from the rationales alone (A).
    ``word_confidence``: probability from which a word of an uncertain sentence goes into the query.
    """

    threshold: float
    documents: int = 3
    rerank: bool = True
    reason: bool = True
    max_steps: int = 7
    max_documents: int = 5
    word_confidence: float = 0.4


def says_nothing(sentence: str) -> bool:
    """True for a sentence that the next step cannot use ("The documents do not mention it."), and for a final one
    without an answer."""
    answer = final_answer(sentence)
    return states_nothing(sentence) if answer is None else is_missing(answer)


def rank(hits: Sequence[Hit], replies: Sequence[Reply]) -> tuple[int, tuple[Candidate, ...]]:
    """The document whose sentence is the least uncertain (of equal ones the search's best), and all candidates.

    Documents on which the model says nothing come last.
    """
    us = [reply.thought.uncertainty for reply in replies]
    silent = [says_nothing(first_sentence(reply.thought.text)) for reply in replies]
    best = min(range(len(us)), key=lambda i: (silent[i], us[i]))
    candidates = tuple(
        Candidate(hit.passage_id, hit.title, hit.text, first_sentence(reply.thought.text), u, i == best)
        for i, (hit, reply, u) in enumerate(zip(hits, replies, us, strict=True))
    )
    return best, candidates


def choose(strategies: Sequence[Strategy]) -> tuple[str, list[Strategy]]:
    """The answer of the lowest U among those that are not missing; all missing: an empty answer, none chosen."""
    answered = [s for s in strategies if not is_missing(s.answer)]
    if not answered:
        return "", list(strategies)
    best = min(answered, key=lambda s: s.uncertainty)
    return best.answer, [replace(s, chosen=s is best) for s in strategies]


def strategy(name: str, reply: Reply, chain: Sequence[str] = (), answer: str | None = None) -> Strategy:
    """The strategy (a way to the answer) that a reply to an answer request stands for.

    ``chain`` was reasoned before it, and ended in an ``answer`` of its own, or (None) in that of the reply.
    """
    text = clean_answer(reply.thought.text) if answer is None else answer
    return Strategy(name, text, reply.thought.uncertainty, False, tuple(chain))


_WORD = regex.compile(rf"[{CJK}]+|[^\W_]+(?:['’.-][^\W_]+)*")
_FUNCTION_WORDS = frozenset(
    "a about after all also an and answer any are as at be been before being both but by can could did do does during "
    "each first for from had has have he her him his how i if in into is it its last many may more most much not of on "
    "one only or other our out over same she should since so some such than that the their them then there these they "
    "this those through to two under until up was we were what when where which while who whom whose why will with "
    "would you your".split()
)


def content_words(text: str) -> list[str]:
    """Words that name something, in their order, each once (letter case does not count)."""
    distinct: dict[str, str] = {}
    for word in _WORD.findall(text):
        if word.lower() not in _FUNCTION_WORDS:
            distinct.setdefault(word.lower(), word)
    return list(distinct.values())


def confident_words(pieces: Sequence[tuple[str, float]], sentence: str, confidence: float) -> list[str]:
    """Content words of ``sentence`` all of whose tokens had a probability of at least ``confidence``.

    ``pieces`` are the generated tokens' texts and probabilities; ``sentence`` is at their beginning.
    """
    text = "".join(piece for piece, _ in pieces)
    start = max(0, text.find(sentence))
    confident = []
    for match in _WORD.finditer(text, start, start + len(sentence)):
        probability = min(_probabilities(pieces, match.start(), match.end()), default=0.0)
        if probability >= confidence:
            confident.append(match.group())
    return content_words(" ".join(confident))


def build_query(pieces: Sequence[tuple[str, float]], sentence: str, question: str, confidence: float) -> str:
    """The confident content words of the sentence, or else the question's content words, or else the question."""
    words = confident_words(pieces, sentence, confidence) or content_words(question)
    return " ".join(words) or question


def _probabilities(pieces: Sequence[tuple[str, float]], start: int, end: int) -> list[float]:
    """Of the tokens that overlap these characters."""
    probabilities, position = [], 0
    for piece, probability in pieces:
        if position < end and position + len(piece) > start:
            probabilities.append(probability)
        position += len(piece)
    return probabilities


def single_hop(question: Question, settings: SelfAwareSettings) -> QuestionCoroutine:
    """One question to its answer, as :func:`kbtrain.rag.seakr_loops.multi_hop`.

    After a direct answer that says nothing the loop searches, however certain the answer is.
    The documents are tried one at a time; of answers that are not missing, the lowest U wins. Where the search finds
    nothing, or every document leads to no answer, the direct answer stands.
    """
    (reply,) = cast(list[Reply], (yield [GenerationRequest(f"{question.id}/direct", question.text, kind="answer")]))
    direct = strategy("direct", reply)
    if direct.uncertainty <= settings.threshold and not is_missing(direct.answer):
        answer, weighed = choose([direct])
        return PipelineOutcome(
            answer, "sure", [Step(direct.answer, direct.uncertainty, None, (), direct.answer)], weighed
        )
    hits = cast(tuple[Hit, ...], (yield (question.text, settings.documents)))
    tried = hits if settings.rerank else hits[:1]
    if not tried:
        answer, weighed = choose([direct])
        return PipelineOutcome(answer, "nothing found", [_single_step(direct, question, (), answer)], weighed)
    requests = [
        GenerationRequest(f"{question.id}/{hit.passage_id}", question.text, (hit,), kind="answer") for hit in tried
    ]
    replies = cast(list[Reply], (yield requests))
    aided = [strategy(f"document {hit.passage_id}", reply) for hit, reply in zip(tried, replies, strict=True)]
    answer, weighed = choose(aided)
    weighed.append(direct)
    if not answer:
        answer, weighed = choose([*aided, direct])
    candidates = tuple(
        Candidate(hit.passage_id, hit.title, hit.text, way.answer, way.uncertainty, way.chosen)
        for hit, way in zip(tried, weighed, strict=False)
    )
    return PipelineOutcome(answer, "searched", [_single_step(direct, question, candidates, answer)], weighed)


def _single_step(direct: Strategy, question: Question, candidates: tuple[Candidate, ...], answer: str) -> Step:
    return Step(direct.answer, direct.uncertainty, question.text, candidates, answer or None)


class _Buffers:
    """A question's state: kept documents, rationale, steps for the trace, queries that were made."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.kept: list[Hit] = []
        self.rationales: list[str] = []
        self.steps: list[Step] = []
        self.queries: set[str] = set()

    def request(self, name: str, extra: tuple[Hit, ...] = ()) -> GenerationRequest:
        documents = (*self.kept, *extra)
        return GenerationRequest(
            f"{self.question.id}/{len(self.steps)}/{name}", self.question.text, documents, tuple(self.rationales)
        )

    def take(self, sentence: str) -> bool:
        """Append a sentence to the rationale, if it says something; True if it was the final one, which is skipped:
        the answer is asked for behind the rationale."""
        if says_nothing(sentence):
            return False
        final = final_answer(sentence) is not None
        if not final:
            self.rationales.append(sentence)
        return final


def multi_hop(question: Question, settings: SelfAwareSettings) -> QuestionCoroutine:
    """One question to its answer: yields prompts and queries, is sent replies and hits (see :mod:`.lockstep`)."""
    buffers, stopped = _Buffers(question), f"{settings.max_steps} steps"
    for _ in range(settings.max_steps):
        reason = yield from _step(buffers, settings)
        if reason is not None:
            stopped = reason
            break
    strategies = yield from _strategies(buffers, settings)
    answer, weighed = choose(strategies)
    return PipelineOutcome(answer, stopped, buffers.steps, weighed)


def _step(buffers: _Buffers, settings: SelfAwareSettings) -> Exchange[str | None]:
    """One sentence; returns why the loop ends, or None. It searches after one that says nothing, however certain."""
    (reply,) = cast(list[Reply], (yield [buffers.request("sentence")]))
    sentence, u = first_sentence(reply.thought.text), reply.thought.uncertainty
    silent = says_nothing(sentence)
    if not silent and (final_answer(sentence) is not None or u <= settings.threshold):
        done = buffers.take(sentence)
        buffers.steps.append(Step(sentence, u, None, (), sentence))
        return "final answer" if done else None
    usable = "" if silent else sentence  # "unknown" is not a search word
    query = build_query(reply.thought.pieces, usable, buffers.question.text, settings.word_confidence)
    repeated = query.lower() in buffers.queries
    buffers.queries.add(query.lower())
    hits = () if repeated else cast(tuple[Hit, ...], (yield (query, settings.documents)))
    ids = {hit.passage_id for hit in buffers.kept}
    new = tuple(hit for hit in hits if hit.passage_id not in ids)
    if not new:
        buffers.steps.append(Step(sentence, u, query, (), None))
        return "repeated query" if repeated else "no new document" if hits else "nothing found"
    return (yield from _aided(buffers, settings, (sentence, u, query), new))


def _aided(
    buffers: _Buffers, settings: SelfAwareSettings, dropped: tuple[str, float, str], new: tuple[Hit, ...]
) -> Exchange[str | None]:
    """The sentence that the best new document leads to; the document is kept."""
    tried = new if settings.rerank else new[:1]
    replies = cast(list[Reply], (yield [buffers.request(hit.passage_id, (hit,)) for hit in tried]))
    best, candidates = rank(tried, replies)
    if not settings.rerank:
        candidates += tuple(Candidate(h.passage_id, h.title, h.text, "", None, False) for h in new[1:])
    buffers.kept.append(tried[best])
    sentence = first_sentence(replies[best].thought.text)
    done = buffers.take(sentence)
    text, u, query = dropped
    buffers.steps.append(Step(text, u, query, candidates, None if says_nothing(sentence) else sentence))
    if done:
        return "final answer"
    return f"{settings.max_documents} documents" if len(buffers.kept) >= settings.max_documents else None


def _strategies(buffers: _Buffers, settings: SelfAwareSettings) -> Exchange[list[Strategy]]:
    """The ways to the answer: A from the rationales; B from its own chain, reasoned over the kept documents.

    Both answers are due behind "So the answer is:", so their uncertainties are those of one stage.
    """
    name, text, documents = buffers.question.id, buffers.question.text, tuple(buffers.kept)
    requests = [GenerationRequest(f"{name}/rationales", text, (), tuple(buffers.rationales), kind="answer")]
    if not settings.reason or not documents:
        (reply,) = cast(list[Reply], (yield requests))
        return [strategy("rationales", reply)]
    (reasoned,) = cast(list[Reply], (yield [GenerationRequest(f"{name}/chain", text, documents, kind="chain")]))
    thoughts, answer = chain(reasoned.thought.text)
    requests.append(GenerationRequest(f"{name}/documents", text, documents, thoughts, kind="answer"))
    first, second = cast(list[Reply], (yield requests))
    return [strategy("rationales", first), strategy("documents", second, thoughts, answer)]


Method = Literal["single_hop", "multi_hop"]
PIPELINES: dict[Method, Callable[[Question, SelfAwareSettings], QuestionCoroutine]] = {
    "single_hop": single_hop,
    "multi_hop": multi_hop,
}
