"""Ten example questions of each kind, drawn by a hash of their ids; and each gate's worst errors.

Worst errors are the needless retrievals of the highest scores and the missed ones of the lowest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.store import SampleStore
from kbtrain.prompts.kbm import query_text
from kbtrain.records import Condition, Evidence, Hit, Outcome, Question
from kbtrain.report.selection import Dimension
from kbtrain.report.words import gate_name

PER_KIND = 10


@dataclass(frozen=True)
class Example:
    """A question with its gold answer, both greedy answers, and what the gate said."""

    id: str
    question: str
    gold: str
    llm_answer: str
    rag_answer: str
    llm_correct: bool
    rag_correct: bool
    score: float | None
    retrieved: bool | None


@dataclass(frozen=True)
class ExampleKind:
    """One kind of question: what it means, how many there are, and up to :data:`PER_KIND` of them."""

    name: str
    meaning: str
    n: int
    examples: list[Example]


def pick(outcomes: Sequence[Outcome], belongs: Callable[[Outcome], bool]) -> tuple[int, list[Outcome]]:
    """Number of outcomes of a kind, and ten of them in the order of their hashed ids."""
    chosen = [o for o in outcomes if belongs(o)]
    chosen.sort(key=lambda o: hashlib.sha256(o.question_id.encode()).digest())
    return len(chosen), chosen[:PER_KIND]


def example_kinds(
    gate: str | None, cut: float | None, scores: Mapping[str, float]
) -> dict[str, tuple[str, Callable[[Outcome], bool]]]:
    """Name -> (meaning, test): the effects of retrieval on the greedy answer, and the gate's two kinds of error."""
    tests: dict[str, tuple[str, Callable[[Outcome], bool]]] = {
        "beneficial": ("wrong without retrieval, right with it", lambda o: o.rag_correct and not o.llm_correct),
        "neutral": ("retrieval makes no difference to the grade", lambda o: o.rag_correct == o.llm_correct),
        "harmful": ("right without retrieval, wrong with it", lambda o: o.llm_correct and not o.rag_correct),
    }
    if gate is not None and cut is not None:
        tests["false positives"] = (
            f"{gate_name(gate)} retrieved, but it was not needed",
            lambda o: scores[o.question_id] > cut and not (o.rag_correct and not o.llm_correct),
        )
        tests["false negatives"] = (
            f"{gate_name(gate)} did not retrieve, but it was needed",
            lambda o: scores[o.question_id] <= cut and o.rag_correct and not o.llm_correct,
        )
    return tests


@dataclass(frozen=True)
class AnsweredRun:
    """A run folder's evaluated questions and their outcomes, in one order; ``sampling_run``: of the answers."""

    path: Path
    sampling_run: str
    questions: Sequence[Question]
    outcomes: Sequence[Outcome]


def collect(
    answered: AnsweredRun, gate: str | None, cut: float | None, scores: Mapping[str, float]
) -> list[ExampleKind]:
    """Examples of every kind, with their texts from the run folder; ``cut``: the gate's threshold."""
    outcomes, sampling_run = answered.outcomes, answered.sampling_run
    picked = {
        name: (meaning, *pick(outcomes, test)) for name, (meaning, test) in example_kinds(gate, cut, scores).items()
    }
    questions = {question.id: question for question in answered.questions}
    with SampleStore(answered.path / "samples.db", read_only=True) as store:
        store.run_meta(sampling_run)
        examples = {
            name: [_example(store, sampling_run, questions[o.question_id], o, scores, cut) for o in chosen]
            for name, (_, _, chosen) in picked.items()
        }
        return [ExampleKind(name, meaning, n, examples[name]) for name, (meaning, n, _) in picked.items()]


def _example(
    store: SampleStore, run: str, question: Question, outcome: Outcome, scores: Mapping[str, float], cut: float | None
) -> Example:
    score = scores.get(question.id)
    return Example(
        id=question.id,
        question=query_text(question),
        gold=" / ".join(question.answers),
        llm_answer=_greedy(store, run, question.id, "llm"),
        rag_answer=_greedy(store, run, question.id, "rag"),
        llm_correct=outcome.llm_correct,
        rag_correct=outcome.rag_correct,
        score=score,
        retrieved=None if score is None or cut is None else score > cut,
    )


def _greedy(store: SampleStore, run: str, question_id: str, condition: Condition) -> str:
    answers = store.get(run, question_id, condition)
    return answers.greedy.text.strip() if answers is not None and answers.greedy is not None else ""


SHOWN = 25
TEXT = 1_500  # characters of a passage shown


@dataclass(frozen=True)
class ErrorCard:
    """One question with its passages and both answers side by side."""

    question: Question
    text: str
    score: float
    llm_answer: str
    rag_answer: str
    llm_correct: bool
    rag_correct: bool
    hits: tuple[Hit, ...]
    places: dict[str, str]


@dataclass(frozen=True)
class ErrorKind:
    """One kind of error: what it means, how many there are, and the worst of them first."""

    name: str
    meaning: str
    n: int
    cards: list[ErrorCard]


def ranked_errors(
    outcomes: Sequence[Outcome], scores: Mapping[str, float], cut: float
) -> dict[str, tuple[str, list[Outcome]]]:
    """Name -> (meaning, all errors of the kind, worst first). Harm first: a retrieval that breaks a right answer is
    worse than one that changes nothing."""
    needed = {o.question_id: o.rag_correct and not o.llm_correct for o in outcomes}
    vain = [o for o in outcomes if scores[o.question_id] > cut and not needed[o.question_id]]
    spared = [o for o in outcomes if scores[o.question_id] <= cut and needed[o.question_id]]
    vain.sort(key=lambda o: (not (o.llm_correct and not o.rag_correct), -scores[o.question_id], o.question_id))
    spared.sort(key=lambda o: (scores[o.question_id], o.question_id))
    return {
        "False positives": ("retrieved although it was not needed; those that broke a right answer first", vain),
        "False negatives": ("not retrieved although it was needed; lowest score first", spared),
    }


def worst_errors(
    answered: AnsweredRun, scores: Mapping[str, float], cut: float, dimensions: Sequence[Dimension]
) -> list[ErrorKind]:
    """The errors with their texts from the run folder."""
    run, sampling_run, questions, outcomes = answered.path, answered.sampling_run, answered.questions, answered.outcomes
    by_kind = ranked_errors(outcomes, scores, cut)
    place = {question.id: i for i, question in enumerate(questions)}
    ids = {o.question_id for _, errors in by_kind.values() for o in errors[:SHOWN]}
    hits = {e.question_id: e.hits for e in _evidence(run / "evidence.jsonl") if e.question_id in ids}
    with SampleStore(run / "samples.db", read_only=True) as store:
        store.run_meta(sampling_run)

        def card(outcome: Outcome) -> ErrorCard:
            i = place[outcome.question_id]
            return ErrorCard(
                question=questions[i],
                text=query_text(questions[i]),
                score=scores[outcome.question_id],
                llm_answer=_greedy(store, sampling_run, outcome.question_id, "llm"),
                rag_answer=_greedy(store, sampling_run, outcome.question_id, "rag"),
                llm_correct=outcome.llm_correct,
                rag_correct=outcome.rag_correct,
                hits=hits.get(outcome.question_id, ()),
                places={d.name: d.labels[d.places[i]] for d in dimensions if d.places[i] >= 0},
            )

        return [
            ErrorKind(name, meaning, len(errors), [card(o) for o in errors[:SHOWN]])
            for name, (meaning, errors) in by_kind.items()
        ]


def _evidence(path: Path) -> Iterator[Evidence]:
    """None where the answers were made elsewhere (data_gen/import_answers.py): what was read is not known then."""
    return jsonl.read(Evidence, path) if path_exists(path) else iter(())
