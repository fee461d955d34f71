"""Questions shown on pages, two that tell what a gate does and a gate's worst errors, and the parts of the questions.

Worst errors are the needless retrievals of the highest scores and the missed ones of the lowest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kbtrain.arrays import Floats
from kbtrain.errors import UserError, at
from kbtrain.evaluation.outcomes import Correctness, answers
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.store import SampleStore
from kbtrain.metrics.significance import Delta, draw_policies
from kbtrain.prompts.kbm import query_text
from kbtrain.records import Evidence, Hit, Outcome, Question, SampleSet
from kbtrain.show import first_ids

WORST = 25  # errors of a kind on a gate's page
TEXT = 1_500  # characters of a passage shown


@dataclass(frozen=True)
class Example:
    """A question with both greedy answers and their grades, the gate's score, and passages."""

    id: str
    question: str
    gold: str
    llm_answer: str
    rag_answer: str
    llm_correct: bool
    rag_correct: bool
    score: float
    hits: tuple[Hit, ...] = ()


@dataclass(frozen=True)
class ExampleKind:
    """One kind of question: what it means, how many there are, and the ones shown."""

    name: str
    meaning: str
    n: int
    examples: list[Example]


@dataclass(frozen=True)
class AnsweredRun:
    """A run folder's evaluated questions and their outcomes, in one order; ``sampling_run``: of the answers."""

    path: Path
    sampling_run: str
    questions: Sequence[Question]
    outcomes: Sequence[Outcome]

    def examples(self, outcomes: Sequence[Outcome], scores: Mapping[str, float]) -> list[Example]:
        """The outcomes with their texts; an answer that is not stored is empty."""
        questions = {question.id: question for question in self.questions}
        with SampleStore(self.path / "samples.db", read_only=True) as store:
            texts = [
                [_text(store.get(self.sampling_run, o.question_id, arm)) for arm in ("llm", "rag")] for o in outcomes
            ]
        asked = [questions[o.question_id] for o in outcomes]
        return [
            Example(q.id, query_text(q), " / ".join(q.answers), llm, rag, o.llm_correct, o.rag_correct, scores[q.id])
            for o, q, (llm, rag) in zip(outcomes, asked, texts, strict=True)
        ]


def _text(answers: SampleSet | None) -> str:
    return answers.greedy.text.strip() if answers is not None and answers.greedy is not None else ""


def _repaired(outcome: Outcome) -> bool:
    return outcome.rag_correct and not outcome.llm_correct


def _broken(outcome: Outcome) -> bool:
    return outcome.llm_correct and not outcome.rag_correct


def telling_examples(answered: AnsweredRun, scores: Mapping[str, float], cut: float) -> list[ExampleKind]:
    """Of the questions that a gate does not search for, one that a search would have broken, and one that it would have
    repaired, picked by a hash of their ids."""
    kinds: list[tuple[str, str, Callable[[Outcome], bool]]] = [
        ("Spared", "answered without passages, which would have broken the answer", _broken),
        ("Missed", "answered without passages, which would have repaired the answer", _repaired),
    ]
    left = [o for o in answered.outcomes if scores[o.question_id] <= cut]
    parts = []
    for name, meaning, belongs in kinds:
        if members := [o for o in left if belongs(o)]:
            picked = min(members, key=lambda o: hashlib.sha256(o.question_id.encode()).digest())
            parts.append(ExampleKind(name, meaning, len(members), answered.examples([picked], scores)))
    return parts


def worst_errors(answered: AnsweredRun, scores: Mapping[str, float], cut: float) -> list[ExampleKind]:
    """The gate's errors with passages, worst first; a needless retrieval that breaks a right answer is worse than one
    that changes nothing."""
    vain = [o for o in answered.outcomes if scores[o.question_id] > cut and not _repaired(o)]
    missed = [o for o in answered.outcomes if scores[o.question_id] <= cut and _repaired(o)]
    vain.sort(key=lambda o: (not _broken(o), -scores[o.question_id], o.question_id))
    missed.sort(key=lambda o: (scores[o.question_id], o.question_id))
    kinds = (
        ("False positives", "passages read without need; those that broke a right answer first", vain),
        ("False negatives", "passages not read although they were needed; lowest score first", missed),
    )
    evidence = answered.path / "evidence.jsonl"
    ids = {o.question_id for errors in (vain, missed) for o in errors[:WORST]}
    # imported answers come without a record of what was read
    records = jsonl.read(Evidence, evidence) if path_exists(evidence) else ()
    hits = {record.question_id: record.hits for record in records if record.question_id in ids}
    parts = []
    for name, meaning, errors in kinds:
        shown = [replace(one, hits=hits.get(one.id, ())) for one in answered.examples(errors[:WORST], scores)]
        parts.append(ExampleKind(name, meaning, len(errors), shown))
    return parts


def questions_of(path: Path, outcomes: Sequence[Outcome]) -> list[Question]:
    """The questions of the outcomes, in their order. Raises :class:`UserError` if any is not in the file."""
    ids = {o.question_id for o in outcomes}
    by_id = {q.id: q for q in jsonl.read(Question, path) if q.id in ids}
    missing = [o.question_id for o in outcomes if o.question_id not in by_id]
    if missing:
        raise UserError(f"{at(path)}: {first_ids(missing)} of outcomes.jsonl not in it; run eval/end_to_end.py again")
    return [by_id[o.question_id] for o in outcomes]


DRAWS = 2_000  # resamples of a part


@dataclass(frozen=True)
class PartRow:
    """A gate on ``n`` questions of one part: its accuracy and its ratio of searches, beside the accuracies of searching
    never and always. ``random``: expected accuracy of a random gate at the same ratio; ``gain``: the difference to it.
    """

    group: str
    n: int
    llm_only: float
    all_rag: float
    ratio: float
    accuracy: float
    random: float
    gain: Delta


def part_rows(graded: Correctness, searched: Floats, parts: Sequence[str | None]) -> list[PartRow]:
    """One row a part by name; questions of no part (None) are in none of them. ``searched``: 1 where the gate does."""
    rows = []
    for i, name in enumerate(sorted({part for part in parts if part is not None})):
        at = [place for place, part in enumerate(parts) if part == name]
        llm, rag = graded.llm[at], graded.rag[at]
        clusters = None if graded.clusters is None else [graded.clusters[place] for place in at]
        (of,) = draw_policies(llm, rag, [searched[at]], DRAWS, i, clusters)
        never, always = float(llm.mean()), float(rag.mean())
        ratio, accuracy, chance = (float(column[0]) for column in (of.ratio, of.accuracy, of.chance))
        rows.append(PartRow(name, len(at), never, always, ratio, accuracy, chance, of.over_chance))
    return rows


def split_rows(
    answered: AnsweredRun, scores: Mapping[str, float], cut: float, clusters: tuple[str, ...] | None = None
) -> dict[str, list[PartRow]]:
    """A gate on the parts of the questions, by each dimension in which they differ."""
    questions, outcomes = answered.questions, answered.outcomes
    no_source = "none" if any(q.source for q in questions) else None
    dimensions: dict[str, Sequence[str | None]] = {
        "source": [q.source or no_source for q in questions],
        "data set": [q.dataset for q in questions],
        "relation": [q.relation for q in questions],
        "change": [q.fact_type for q in questions],
        "hops": [None if q.hops is None else str(q.hops) for q in questions],
        "form": [q.form for q in questions],
    }
    searched = np.array([scores[o.question_id] > cut for o in outcomes], dtype=np.float64)
    graded = replace(answers(outcomes, "greedy"), clusters=clusters)
    differing = {name: labels for name, labels in dimensions.items() if len(set(labels) - {None}) > 1}
    return {name: part_rows(graded, searched, labels) for name, labels in differing.items()}
