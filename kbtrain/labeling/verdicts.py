"""A judge's verdicts on stored answers, one record a question: made once, read by labels and scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kbtrain.answers import grading
from kbtrain.labeling.judges import Judge
from kbtrain.records import CONDITIONS, Question
from kbtrain.store import SampleStore


@dataclass(frozen=True)
class QuestionVerdicts:
    """Normalised answer -> right, wrong, or None (the judge abstained); answers that say nothing are not in it."""

    question_id: str
    right: dict[str, bool | None]


def distinct_answers(store: SampleStore, run: str, question: Question) -> dict[str, str]:
    """Normalised answer -> its first spelling, over all conditions, greedy answers included."""
    found: dict[str, str] = {}
    for condition in CONDITIONS:
        made = store.get(run, question.id, condition)
        if made is None:
            continue
        for answer in [*([made.greedy] if made.greedy else []), *made.samples]:
            if not grading.is_empty(answer.text):
                found.setdefault(grading.normalise(answer.text), answer.text)
    return found


def judged(
    store: SampleStore, run: str, questions: Iterable[Question], judge: Judge, batch: int, counts: Counter[str]
) -> Iterator[QuestionVerdicts]:
    """Verdicts on every distinct answer, in the questions' order, at least ``batch`` answers judged at once.

    ``counts`` grows by ``answers``, ``right`` and ``abstained`` (of distinct answers).
    """
    waiting: list[tuple[Question, dict[str, str]]] = []
    for question in questions:
        waiting.append((question, distinct_answers(store, run, question)))
        if sum(len(answers) for _, answers in waiting) >= batch:
            yield from _judge(waiting, judge, counts)
            waiting = []
    yield from _judge(waiting, judge, counts)


def _judge(
    waiting: list[tuple[Question, dict[str, str]]], judge: Judge, counts: Counter[str]
) -> Iterator[QuestionVerdicts]:
    cases = [(question, text) for question, answers in waiting if question.answers for text in answers.values()]
    opinions = iter(judge.judge(cases) if cases else [])
    for question, answers in waiting:
        # without a gold answer there is nothing to compare with
        right = {key: next(opinions).right if question.answers else None for key in answers}
        counts["answers"] += len(right)
        counts["right"] += sum(value is True for value in right.values())
        counts["abstained"] += sum(value is None for value in right.values())
        yield QuestionVerdicts(question.id, right)
