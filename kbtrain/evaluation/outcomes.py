"""Outcomes of questions from stored answers, as arrays for the metrics, and accuracies of the conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kbtrain.answers.grading import Verdicts
from kbtrain.answers.thoughts import counted_answers, is_left_out, silence
from kbtrain.arrays import Floats
from kbtrain.labeling import indicators
from kbtrain.labeling.label import Cut
from kbtrain.records import Outcome, Question, SampleSet

AccuracyKind = Literal["greedy", "expected"]
Resample = Literal["questions", "entities"]  # what intervals draw


@dataclass(frozen=True)
class Correctness:
    """Correctness of each question without (``llm``) and with retrieval (``rag``), in [0, 1].

    ``greedy``: 1 if the greedy answer is right; ``expected``: share of the sampled answers that are right.
    ``clusters``: names of groups of questions that intervals draw as a whole; None: questions are drawn.
    """

    kind: AccuracyKind
    llm: Floats
    rag: Floats
    clusters: tuple[str, ...] | None = None


def entities_of(questions: Sequence[Question]) -> tuple[str, ...]:
    """The entity that each question asks about, its first; the question itself where it names none.

    The others (an answer, the other options of a choice) link nearly all questions of the atlas with each other, so
    that groups by any common entity would be one.
    """
    return tuple(question.entities[0] if question.entities else question.id for question in questions)


def clusters_of(resample: Resample, questions: Sequence[Question]) -> tuple[str, ...] | None:
    """:func:`entities_of` the questions where entities are drawn, None where questions are."""
    return entities_of(questions) if drawn_units(resample, questions) == "entities" else None


def drawn_units(resample: Resample, questions: Sequence[Question]) -> Resample:
    """Units that intervals draw: questions, too, where entities are asked for and no question names one."""
    return resample if any(question.entities for question in questions) else "questions"


@dataclass(frozen=True)
class ConditionOutcome:
    """One question under one condition: the greedy answer's correctness, and the share of right samples (mastery).

    None without such an answer, or without a verdict on it. ``empty`` and ``cut_off`` (token limit) are of
    the greedy answer, and so is ``left_out``: it was cut before it began, or is reasoning alone. ``prompt_tokens`` is
    what the model reads for it.
    """

    correct: bool | None
    mastery: float | None
    tokens: int
    empty: bool
    cut_off: bool
    prompt_tokens: int = 0
    left_out: bool = False


def grade(
    question: Question, stored: SampleSet, verdicts: Verdicts | None = None, cut: Cut = "keep"
) -> ConditionOutcome:
    """Grade stored answers: by the question's rule, or by a judge's verdicts on them. ``cut``: of the samples, as for
    the labels."""
    greedy = stored.greedy
    texts = (sample.text for sample in counted_answers(stored.samples) if cut == "keep" or sample.finish != "length")
    sampled = indicators.grade(question, texts, verdicts)
    return ConditionOutcome(
        correct=indicators.grade_answer(question, greedy, verdicts),
        mastery=sampled.n_correct / sampled.n_graded if sampled.n_graded else None,
        tokens=0 if greedy is None else greedy.n_tokens,
        empty=greedy is not None and silence(greedy) == "empty",
        left_out=greedy is not None and is_left_out(greedy),
        cut_off=greedy is not None and greedy.finish == "length",
        prompt_tokens=stored.prompt_tokens,
    )


def outcome(question: Question, llm: ConditionOutcome, rag: ConditionOutcome) -> Outcome:
    """Raises ValueError if a greedy answer is missing."""
    if llm.correct is None or rag.correct is None:
        raise ValueError(f"question {question.id!r} has no greedy answer")
    return Outcome(
        question_id=question.id, split=question.split, relation=question.relation, llm_correct=llm.correct,
        rag_correct=rag.correct, llm_expected=llm.mastery, rag_expected=rag.mastery, llm_tokens=llm.tokens,
        rag_tokens=rag.tokens,
    )  # fmt: skip


def has_expected(outcomes: Sequence[Outcome]) -> bool:
    """True if every question was sampled under both conditions."""
    return all(o.llm_expected is not None and o.rag_expected is not None for o in outcomes) and len(outcomes) > 0


def answers(outcomes: Sequence[Outcome], kind: AccuracyKind) -> Correctness:
    """Arrays in the order of the outcomes."""
    if kind == "greedy":
        pairs: list[Any] = [(o.llm_correct, o.rag_correct) for o in outcomes]
    else:
        pairs = [(o.llm_expected, o.rag_expected) for o in outcomes]
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    if np.isnan(table).any():
        name = outcomes[int(np.isnan(table).argmax()) // 2].question_id
        raise ValueError(f"question {name!r} has no samples, so no expected accuracy")
    return Correctness(kind, table[:, 0], table[:, 1])


def dev_kind(dev: Sequence[Outcome], kind: AccuracyKind) -> AccuracyKind:
    """``kind``; greedy answers stand for ``expected`` where not every dev question was sampled."""
    return kind if has_expected(dev) else "greedy"


def is_needed(outcomes: Sequence[Outcome]) -> NDArray[np.bool_]:
    """Retrieval is needed: right with it and wrong without (greedy answers)."""
    return np.array([o.rag_correct and not o.llm_correct for o in outcomes], dtype=bool)


def greedy_wrong(outcomes: Sequence[Outcome]) -> tuple[str, NDArray[np.bool_]]:
    """The definition's name and its truth values: the greedy answer without retrieval is wrong."""
    return "llm_greedy_wrong", np.array([not o.llm_correct for o in outcomes], dtype=bool)


def unmastered(outcomes: Sequence[Outcome], tau_mastery: float) -> tuple[str, NDArray[np.bool_]]:
    """Retrieval is needed by the KBM paper's definition: mastery without retrieval is not above tau.

    Without samples for every question: :func:`greedy_wrong`, and the name says so.
    """
    masteries = [o.llm_expected for o in outcomes]
    if any(m is None for m in masteries) or not outcomes:
        return greedy_wrong(outcomes)
    return "unmastered", np.array([m is not None and m <= tau_mastery for m in masteries], dtype=bool)


@dataclass(frozen=True)
class ConditionSummary:
    """``accuracy``: of the ``n`` stored greedy answers; ``expected_accuracy``: mean mastery of the ``n_sampled``
    questions with samples; ``n_empty`` and ``n_cut_off`` (token limit reached) count greedy answers. None without any.
    """

    n: int
    accuracy: float | None
    n_sampled: int
    expected_accuracy: float | None
    generated_tokens: int
    n_empty: int
    n_cut_off: int


def summarise(graded: Sequence[ConditionOutcome]) -> ConditionSummary:
    """Add up one condition's answers."""
    right = [g.correct for g in graded if g.correct is not None]
    masteries = [g.mastery for g in graded if g.mastery is not None]
    return ConditionSummary(
        n=len(right),
        accuracy=sum(right) / len(right) if right else None,
        n_sampled=len(masteries),
        expected_accuracy=sum(masteries) / len(masteries) if masteries else None,
        generated_tokens=sum(g.tokens for g in graded),
        n_empty=sum(g.empty for g in graded),
        n_cut_off=sum(g.cut_off for g in graded),
    )
