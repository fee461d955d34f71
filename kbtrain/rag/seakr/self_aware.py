"""Self-aware re-ranking and reasoning (SeaKR, sections 3.2 and 3.3): the candidate with the lowest uncertainty U.

SeaKR's loops request the next sentence, or the answer, given documents and the rationale so far.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeVar

from kbtrain.answers.missing import is_missing, states_nothing
from kbtrain.errors import UserError
from kbtrain.gates.seakr.engine import Thought, Uncertainty
from kbtrain.prompts.kbm import encode
from kbtrain.prompts.seakr import (
    CHAIN_STOP,
    clean_answer,
    encode_head,
    final_answer,
    first_sentence,
    reasoning,
    step_prompt,
)
from kbtrain.rag.seakr.trace import Candidate, Step, Strategy
from kbtrain.records import Hit, Titles

Kind = Literal["sentence", "answer", "chain"]
Fitted = tuple[list[int], int]  # token ids within the room; tokens of documents that were cut


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt of a question. ``kind``: generate the next sentence, the answer, or a whole chain of reasoning.

    ``id`` names the random numbers of its samples; a chain is the greedy text alone, and has none.
    """

    id: str
    question: str
    documents: tuple[Hit, ...] = ()
    rationales: tuple[str, ...] = ()
    kind: Kind = "sentence"


@dataclass(frozen=True)
class Reply:
    """A generated thought; ``cut``: tokens of the documents that its prompt had no room for; ``seconds``: what it took,
    where it was thought before (None: now).
    """

    thought: Thought
    cut: int
    seconds: float | None = None


class AnswerEngine(Protocol):
    """A model that generates sentences or answers with their uncertainty, many at a time."""

    def think(self, requests: Sequence[GenerationRequest]) -> list[Reply]:
        """One reply for each, in their order."""
        ...


class PromptEngine:
    """Render prompts with ``shown`` demonstrations and generate with an :class:`Uncertainty` engine.

    ``titles``: when a document's title stands before its text, by the rule of sampling.

    A chain has at most ``chain_tokens`` tokens. A prompt that is too long loses the tail of its last document first,
    never question, rationale or demonstrations.
    """

    def __init__(self, engine: Uncertainty, demonstrations: int, chain_tokens: int, titles: Titles = "missing") -> None:
        self.engine = engine
        self.titles: Titles = titles
        self.demonstrations = demonstrations
        self.chain_tokens = chain_tokens
        self.room = engine.settings.max_prompt_tokens
        head = encode_head(engine.tokenizer, demonstrations)
        if len(head) >= self.room:
            raise UserError(
                f"key 'max_prompt_tokens': {self.room} has no room for a question behind {demonstrations} "
                f"demonstrations ({len(head)} tokens); raise it or show fewer"
            )
        engine.set_prefix(head)

    def think(self, requests: Sequence[GenerationRequest]) -> list[Reply]:
        """Replies in the order of the requests. Raises :class:`UserError` for a question too long for the model."""
        return self.think_fitted(requests, [self.fit(request) for request in requests])

    def think_fitted(self, requests: Sequence[GenerationRequest], fitted: Sequence[Fitted]) -> list[Reply]:
        """As :meth:`think`, of requests whose prompts :meth:`fit` has made already."""
        prompts = [(request.id, ids) for request, (ids, _) in zip(requests, fitted, strict=True)]
        thoughts: dict[int, Thought] = {}
        for kind in sorted({request.kind for request in requests}):
            some = [i for i, request in enumerate(requests) if request.kind == kind]
            thoughts |= dict(zip(some, self._of_kind(kind, [prompts[i] for i in some]), strict=True))
        return [Reply(thoughts[i], cut) for i, (_, cut) in enumerate(fitted)]

    def _of_kind(self, kind: Kind, prompts: list[tuple[str, list[int]]]) -> list[Thought]:
        """Thoughts to prompts of one kind. The uncertainty of a sentence is that of the sentence, not of its line."""
        if kind == "chain":
            return self.engine.complete(prompts, self.chain_tokens, CHAIN_STOP)
        return self.engine.think(prompts, first_sentence if kind == "sentence" else None)

    def fit(self, request: GenerationRequest) -> Fitted:
        """Token ids within the room, and how many tokens of documents were cut. Raises as :meth:`think`."""
        ids, cut = self._encode(request), 0
        while len(ids) > self.room:
            whole = [i for i, hit in enumerate(request.documents) if hit.text]
            if not whole:
                raise UserError(f"'{request.id}': prompt of {len(ids)} tokens without documents; room for {self.room}")
            last = request.documents[whole[-1]]
            tokens = self.engine.tokenizer(last.text, add_special_tokens=False)["input_ids"]
            drop = min(len(ids) - self.room, len(tokens))
            cut += drop
            shorter = replace(last, text=str(self.engine.tokenizer.decode(tokens[:-drop])))
            documents = (*request.documents[: whole[-1]], shorter, *request.documents[whole[-1] + 1 :])
            request = replace(request, documents=documents)
            ids = self._encode(request)
        return ids, cut

    def _encode(self, request: GenerationRequest) -> list[int]:
        prompt = step_prompt(request.question, request.documents, self.demonstrations, self.titles)
        begin = reasoning(request.rationales, request.kind == "answer")
        return encode(self.engine.tokenizer, prompt, reply=begin)


Search = tuple[str, int]  # query, k
Request = list[GenerationRequest] | Search
Response = list[Reply] | tuple[Hit, ...]
T = TypeVar("T")
Exchange = Generator[Request, Response, T]
QuestionCoroutine = Exchange["PipelineOutcome"]
"""A question in work: yields generation requests or a search, is sent replies or hits, returns its outcome."""


QueryWords = Literal["probable", "public"]


@dataclass(frozen=True)
class SelfAwareSettings:
    """``documents``: N of a search; ``max_steps`` and ``max_documents`` end the multi-hop loop (paper: 3, 7, 5).

    ``rerank`` False keeps the best hit of the search; ``reason`` False answers from the rationales alone (A).
    ``word_confidence``: probability from which a word of an uncertain sentence goes into the query; with
    ``query_words`` "public" also each that stands in the question or in the step before, as in SeaKR's public code.
    """

    threshold: float
    documents: int = 3
    rerank: bool = True
    reason: bool = True
    max_steps: int = 7
    max_documents: int = 5
    word_confidence: float = 0.4
    query_words: QueryWords = "probable"


@dataclass
class PipelineOutcome:
    """Answer of a finished question, the reason why its loop ended, and the steps and strategies of its trace."""

    answer: str
    stopped: str
    steps: list[Step] = field(default_factory=list)
    strategies: list[Strategy] = field(default_factory=list)


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
