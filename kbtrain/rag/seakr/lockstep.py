"""Answer several questions in lockstep: prompts share batches, searches share calls, each question keeps its costs.

A question is a generator (:data:`~kbtrain.rag.seakr.self_aware.QuestionCoroutine`), so its pipeline reads as if alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kbtrain.errors import UserError
from kbtrain.rag.seakr.self_aware import (
    AnswerEngine,
    GenerationRequest,
    PipelineOutcome,
    QuestionCoroutine,
    Reply,
    Request,
    Response,
)
from kbtrain.rag.seakr.trace import Spent, Trace, grades
from kbtrain.records import Question
from kbtrain.retrieval.base import Searcher

Begin = Callable[[Question], QuestionCoroutine]


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
        """Add to the costs."""
        changes: dict[str, Any] = {name: getattr(self.spent, name) + n for name, n in counts.items()}
        self.spent = replace(self.spent, **changes)


def answer_all(
    questions: Iterable[Question],
    begin: Begin,
    thinking: AnswerEngine,
    searcher: Searcher,
    *,
    method: str,
    threshold: float,
    at_once: int = 4,
) -> Iterator[Trace]:
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
        _search([open_question for open_question in working if isinstance(open_question.request, tuple)], searcher)
        _think([open_question for open_question in working if isinstance(open_question.request, list)], thinking)
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
    """All prompts in one call; where one fails, each question's in a call of its own."""
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
    replies = iter(thinking.think(flat))
    seconds = (time.perf_counter() - begin) / max(1, len(flat))
    for open_question, requests in pending:
        responses = [next(replies) for _ in requests]
        _count(open_question, requests, responses, seconds)
        open_question.send(responses)


def _count(
    open_question: _Open, requests: Sequence[GenerationRequest], replies: Sequence[Reply], seconds: float
) -> None:
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


def _trace(open_question: _Open, method: str, threshold: float) -> Trace:
    outcome = open_question.outcome or PipelineOutcome("", "error")
    question, answer = open_question.question, outcome.answer
    return Trace(
        question_id=question.id,
        question=question.text,
        answers=question.answers,
        method=method,
        threshold=threshold,
        steps=tuple(outcome.steps),
        strategies=tuple(outcome.strategies),
        stopped=outcome.stopped,
        answer=answer,
        **grades(question, answer),
        spent=replace(open_question.spent, seconds=round(open_question.spent.seconds, 4)),
        empty_samples=open_question.empty,
        document_tokens_cut=open_question.cut,
        error=open_question.error,
    )
