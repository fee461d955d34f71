"""Works on several questions at once: their prompts share batches, their searches one call, and each keeps its costs.

A question is a generator (:data:`~kbtrain.rag.seakr.self_aware.Talk`), so that its method reads as if it were alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kbtrain.answers.grading import exact_match, is_correct, token_f1
from kbtrain.errors import UserError
from kbtrain.rag.seakr.self_aware import Ask, Granted, Outcome, Reply, Talk, Thinking, Wish
from kbtrain.rag.seakr.trace import Spent, Trace
from kbtrain.records import Question
from kbtrain.retrieval.base import Searcher

Begin = Callable[[Question], Talk]


@dataclass
class _Open:
    """A question in work: what it wants next, and what it has cost so far."""

    question: Question
    talk: Talk
    wish: Wish | None = None
    outcome: Outcome | None = None
    error: str | None = None
    spent: Spent = field(default_factory=Spent)
    empty: int = 0
    cut: int = 0

    def send(self, granted: Granted | None) -> None:
        """Give it what it wished for, and take its next wish or its outcome."""
        try:
            self.wish = next(self.talk) if granted is None else self.talk.send(granted)
        except StopIteration as stop:
            self.wish, self.outcome = None, stop.value

    def fail(self, error: UserError) -> None:
        """Give up this question; the others go on."""
        self.talk.close()
        self.wish, self.error = None, str(error)

    def add(self, **counts: float) -> None:
        """Add to what was spent."""
        changes: dict[str, Any] = {name: getattr(self.spent, name) + n for name, n in counts.items()}
        self.spent = replace(self.spent, **changes)


def answer_all(
    questions: Iterable[Question],
    begin: Begin,
    thinking: Thinking,
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
            one = _Open(question, begin(question))
            one.send(None)
            working.append(one)
        if not working:
            return
        _search([one for one in working if isinstance(one.wish, tuple)], searcher)
        _think([one for one in working if isinstance(one.wish, list)], thinking)
        for one in [one for one in working if one.wish is None]:
            working.remove(one)
            yield _trace(one, method, threshold)


def _search(working: Sequence[_Open], searcher: Searcher) -> None:
    """One call for each k that is asked for."""
    wishes = [(one, one.wish) for one in working if isinstance(one.wish, tuple)]
    for k in sorted({wish[1] for _, wish in wishes}):
        some = [(one, wish[0]) for one, wish in wishes if wish[1] == k]
        begin = time.perf_counter()
        found = searcher.search([query for _, query in some], k)
        seconds = (time.perf_counter() - begin) / len(some)
        for (one, _), hits in zip(some, found, strict=True):
            one.add(searches=1, seconds=seconds)
            one.send(hits)


def _think(working: Sequence[_Open], thinking: Thinking) -> None:
    """All prompts in one call; where one fails, each question's in a call of its own."""
    asks = [(one, one.wish) for one in working if isinstance(one.wish, list)]
    try:
        _grant(asks, thinking)
    except UserError:
        for pair in asks:
            try:
                _grant([pair], thinking)
            except UserError as error:
                pair[0].fail(error)


def _grant(wishes: Sequence[tuple[_Open, list[Ask]]], thinking: Thinking) -> None:
    flat = [ask for _, asks in wishes for ask in asks]
    begin = time.perf_counter()
    replies = thinking.think(flat)
    seconds = (time.perf_counter() - begin) / max(1, len(flat))
    rest = iter(replies)
    for one, asks in wishes:
        own = [next(rest) for _ in asks]
        _count(one, asks, own, seconds)
        one.send(own)


def _count(one: _Open, asks: Sequence[Ask], replies: Sequence[Reply], seconds: float) -> None:
    thoughts = [reply.thought for reply in replies]
    one.add(
        passages=sum(len(ask.documents) for ask in asks),
        requests=len(asks),
        samples=sum(thought.n_samples for thought in thoughts),
        tokens=sum(thought.generated_tokens for thought in thoughts),
        prompt_tokens=sum(thought.prompt_tokens for thought in thoughts),
        seconds=seconds * len(asks),
    )
    one.empty += sum(thought.n_empty for thought in thoughts)
    one.cut += sum(reply.cut for reply in replies)


def _trace(one: _Open, method: str, threshold: float) -> Trace:
    outcome = one.outcome or Outcome("", "error")
    question, answer = one.question, outcome.answer
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
        correct=is_correct(question, answer),
        exact_match=exact_match(answer, question.answers),
        f1=token_f1(answer, question.answers),
        spent=replace(one.spent, seconds=round(one.spent.seconds, 4)),
        empty_samples=one.empty,
        document_tokens_cut=one.cut,
        error=one.error,
    )
