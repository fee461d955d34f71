"""SeaKR's questions answered in lockstep: prompts share batches, searches share calls, each question keeps its costs.

A question is a generator (:data:`QuestionCoroutine`), so its pipeline reads as if alone: it requests the next sentence,
or the answer, given documents and the rationale so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

from kbtrain.errors import UserError
from kbtrain.gates.seakr.engine import Thought, Uncertainty
from kbtrain.prompts.kbm import encode, without_end
from kbtrain.prompts.seakr import CHAIN_STOP, encode_head, first_sentence, reasoning, step_prompt
from kbtrain.rag.seakr_traces import Spent, Step, Strategy, Trace, grades
from kbtrain.records import Hit, Question, Titles
from kbtrain.retrieval.base import Searcher

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
    where it was thought before (None: now)."""

    thought: Thought
    cut: int
    seconds: float | None = None


class AnswerEngine(Protocol):
    """A model that generates sentences or answers with their uncertainty, many at a time."""

    def think(self, requests: Sequence[GenerationRequest]) -> list[Reply]:
        """One reply for each, in their order."""
        ...


class PromptEngine:
    """Render prompts with this number of ``demonstrations`` and generate with an :class:`Uncertainty` engine.

    ``titles``: when a document's title is before its text, by the rule of sampling.

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

    def think(self, requests: Sequence[GenerationRequest], fitted: Sequence[Fitted] | None = None) -> list[Reply]:
        """Replies in the order of the requests; ``fitted``: their prompts, where :meth:`fit` has made them already.
        Raises :class:`UserError` for a question too long for the model."""
        fitted = [self.fit(request) for request in requests] if fitted is None else fitted
        thoughts: dict[int, Thought] = {}
        for kind in sorted({request.kind for request in requests}):
            some = [i for i, request in enumerate(requests) if request.kind == kind]
            prompts = [(requests[i].id, fitted[i][0]) for i in some]
            if kind == "chain":
                replies = self.engine.complete(prompts, self.chain_tokens, CHAIN_STOP)
            else:  # the uncertainty of a sentence is that of the sentence, not of its line
                replies = self.engine.think(prompts, first_sentence if kind == "sentence" else None)
            thoughts |= dict(zip(some, replies, strict=True))
        return [Reply(thoughts[i], cut) for i, (_, cut) in enumerate(fitted)]

    def fit(self, request: GenerationRequest) -> Fitted:
        """Token ids within the room, and how many tokens of documents were cut. Raises as :meth:`think`."""
        ids, cut = self._encode(request), 0
        while len(ids) > self.room:
            whole = [i for i, hit in enumerate(request.documents) if hit.text]
            if not whole:
                raise UserError(f"'{request.id}': prompt of {len(ids)} tokens without documents; room for {self.room}")
            last = request.documents[whole[-1]]
            text, dropped = without_end(self.engine.tokenizer, last.text, len(ids) - self.room)
            cut += dropped
            documents = (*request.documents[: whole[-1]], replace(last, text=text), *request.documents[whole[-1] + 1 :])
            request = replace(request, documents=documents)
            ids = self._encode(request)
        return ids, cut

    def _encode(self, request: GenerationRequest) -> list[int]:
        prompt = step_prompt(request.question, request.documents, self.demonstrations, self.titles)
        begin = reasoning(request.rationales, request.kind == "answer")
        return encode(self.engine.tokenizer, prompt, reply=begin)


Request = list[GenerationRequest] | tuple[str, int]  # or a search: query, k
Response = list[Reply] | tuple[Hit, ...]
T = TypeVar("T")
Exchange = Generator[Request, Response, T]
QuestionCoroutine = Exchange["PipelineOutcome"]
"""A question in work: yields generation requests or a search, is sent replies or hits, returns its outcome."""
Begin = Callable[[Question], QuestionCoroutine]


@dataclass
class PipelineOutcome:
    """Answer of a finished question, the reason why its loop ended, and the steps and strategies of its trace."""

    answer: str
    stopped: str
    steps: list[Step] = field(default_factory=list)
    strategies: list[Strategy] = field(default_factory=list)


@dataclass
class _Open:
    """A question in work: its next request, and its cost so far."""

    question: Question
    coroutine: QuestionCoroutine
    request: Request | None = None
    outcome: PipelineOutcome | None = None
    error: str | None = None
    spent: Spent = field(default_factory=Spent)
    empty: int = 0
    cut: int = 0

    def send(self, response: Response | None) -> None:
        """Send the response to its request, and take its next request or its outcome."""
        try:
            self.request = next(self.coroutine) if response is None else self.coroutine.send(response)
        except StopIteration as stop:
            self.request, self.outcome = None, stop.value

    def fail(self, error: UserError) -> None:
        """Close this question with an error; the others continue."""
        self.coroutine.close()
        self.request, self.error = None, str(error)

    def add(self, **counts: float) -> None:
        changes: dict[str, Any] = {name: getattr(self.spent, name) + n for name, n in counts.items()}
        self.spent = replace(self.spent, **changes)


def answer_all(
    questions: Iterable[Question], begin: Begin, thinking: AnswerEngine, searcher: Searcher, *, method: str,
    threshold: float, at_once: int = 4,
) -> Iterator[Trace]:  # fmt: skip
    """A trace for each question as soon as it is finished, ``at_once`` of them in work.

    A question whose prompt fails (too long, states that are not numbers) gets a trace with the error in it.
    """
    waiting, working = iter(questions), list[_Open]()
    while True:
        while len(working) < at_once and (question := next(waiting, None)) is not None:
            open_question = _Open(question, begin(question))
            open_question.send(None)
            working.append(open_question)
        if not working:
            return
        _search(working, searcher)
        _think(working, thinking)
        for open_question in [open_question for open_question in working if open_question.request is None]:
            working.remove(open_question)
            yield _trace(open_question, method, threshold)


def _search(working: Sequence[_Open], searcher: Searcher) -> None:
    """One call for each k among the requests."""
    requests = [
        (open_question, open_question.request) for open_question in working if isinstance(open_question.request, tuple)
    ]
    for k in sorted({request[1] for _, request in requests}):
        some = [(open_question, request[0]) for open_question, request in requests if request[1] == k]
        begin = time.perf_counter()
        results = searcher.search([query for _, query in some], k)
        seconds = (time.perf_counter() - begin) / len(some)
        for (open_question, _), hits in zip(some, results, strict=True):
            open_question.add(searches=1, seconds=seconds)
            open_question.send(hits)


def _think(working: Sequence[_Open], thinking: AnswerEngine) -> None:
    """All prompts in one call; where one fails, each question's in its own call."""
    requests = [
        (open_question, open_question.request) for open_question in working if isinstance(open_question.request, list)
    ]
    try:
        _respond(requests, thinking)
    except UserError:
        for pair in requests:
            try:
                _respond([pair], thinking)
            except UserError as error:
                pair[0].fail(error)


def _respond(pending: Sequence[tuple[_Open, list[GenerationRequest]]], thinking: AnswerEngine) -> None:
    flat = [request for _, requests in pending for request in requests]
    begin = time.perf_counter()
    answered = iter(thinking.think(flat))
    seconds = (time.perf_counter() - begin) / max(1, len(flat))
    for open_question, requests in pending:
        replies = [next(answered) for _ in requests]
        thoughts = [reply.thought for reply in replies]
        open_question.add(
            passages=sum(len(request.documents) for request in requests),
            requests=len(requests),
            samples=sum(thought.n_samples for thought in thoughts),
            tokens=sum(thought.generated_tokens for thought in thoughts),
            prompt_tokens=sum(thought.prompt_tokens for thought in thoughts),
            seconds=sum(seconds if reply.seconds is None else reply.seconds for reply in replies),
        )
        open_question.empty += sum(thought.n_empty for thought in thoughts)
        open_question.cut += sum(reply.cut for reply in replies)
        open_question.send(replies)


def _trace(open_question: _Open, method: str, threshold: float) -> Trace:
    outcome = open_question.outcome or PipelineOutcome("", "error")
    question, answer = open_question.question, outcome.answer
    return Trace(
        question_id=question.id, question=question.text, answers=question.answers, method=method, threshold=threshold,
        steps=tuple(outcome.steps), strategies=tuple(outcome.strategies), stopped=outcome.stopped, answer=answer,
        **grades(question, answer), spent=replace(open_question.spent, seconds=round(open_question.spent.seconds, 4)),
        empty_samples=open_question.empty, document_tokens_cut=open_question.cut, error=open_question.error,
    )  # fmt: skip
