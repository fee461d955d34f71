"""Questions shown on pages: ten of each kind, drawn by a hash of their ids, a gate's worst errors, and the parts to
choose from.

Worst errors are the needless retrievals of the highest scores and the missed ones of the lowest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kbtrain.arrays import Bools
from kbtrain.errors import UserError, at
from kbtrain.evaluation.groups import quantile_groups, ranked_within
from kbtrain.evaluation.scores import first_ids
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.store import SampleStore
from kbtrain.prompts.kbm import query_text
from kbtrain.records import Condition, Evidence, Hit, Outcome, Question
from kbtrain.report.words import gate_name

PER_KIND = 10
TELLING = ("spared", "false negatives")  # kinds of which a report shows one first
WORST = 25  # errors of a kind on a gate's page
TEXT = 1_500  # characters of a passage shown
_POPULARITY_GROUPS = 4


@dataclass(frozen=True)
class Example:
    """A question with both greedy answers and their grades, the gate's score, passages, and its labels by dimension."""

    id: str
    question: str
    gold: str
    llm_answer: str
    rag_answer: str
    llm_correct: bool | None = None
    rag_correct: bool | None = None
    score: float | None = None
    hits: tuple[Hit, ...] = ()
    places: Mapping[str, str] | None = None


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
        """The outcomes with their texts."""
        questions = {question.id: question for question in self.questions}
        texts = greedy_texts(self.path, self.sampling_run, [o.question_id for o in outcomes])
        return [
            Example(
                o.question_id, query_text(questions[o.question_id]), " / ".join(questions[o.question_id].answers),
                *pair, o.llm_correct, o.rag_correct, scores.get(o.question_id),
            )
            for o, pair in zip(outcomes, texts, strict=True)
        ]  # fmt: skip


def greedy_texts(run: Path, sampling_run: str, ids: Sequence[str]) -> list[tuple[str, str]]:
    """The greedy answers without and with retrieval; empty where one is not stored."""
    with SampleStore(run / "samples.db", read_only=True) as store:
        store.run_meta(sampling_run)

        def text(question_id: str, condition: Condition) -> str:
            answers = store.get(sampling_run, question_id, condition)
            return answers.greedy.text.strip() if answers is not None and answers.greedy is not None else ""

        return [(text(name, "llm"), text(name, "rag")) for name in ids]


def needs_search(outcome: Outcome) -> bool:
    """True where the greedy answer is right with retrieval alone."""
    return outcome.rag_correct and not outcome.llm_correct


def collect(
    answered: AnsweredRun, gate: str | None, cut: float | None, scores: Mapping[str, float]
) -> list[ExampleKind]:
    """Examples of the effects of retrieval on the greedy answer and of the gate's two kinds of error at threshold
    ``cut``."""
    outcomes = answered.outcomes
    kinds = [
        ("beneficial", "wrong without retrieval, right with it", [o for o in outcomes if needs_search(o)]),
        ("neutral", "retrieval makes no difference to the grade",
         [o for o in outcomes if o.rag_correct == o.llm_correct]),
        ("harmful", "right without retrieval, wrong with it",
         [o for o in outcomes if o.llm_correct and not o.rag_correct]),
    ]  # fmt: skip
    if gate is not None and cut is not None:
        vain, missed = _errors(outcomes, scores, cut)
        spared = [o for o in outcomes if scores[o.question_id] <= cut and o.llm_correct and not o.rag_correct]
        kinds += [
            ("spared", f"{gate_name(gate)} did not retrieve, and a passage would have broken the answer", spared),
            ("false positives", f"{gate_name(gate)} retrieved, but it was not needed", vain),
            ("false negatives", f"{gate_name(gate)} did not retrieve, but it was needed", missed),
        ]
    parts = []
    for name, meaning, members in kinds:
        members.sort(key=lambda o: hashlib.sha256(o.question_id.encode()).digest())
        parts.append(ExampleKind(name, meaning, len(members), answered.examples(members[:PER_KIND], scores)))
    return parts


def _errors(
    outcomes: Sequence[Outcome], scores: Mapping[str, float], cut: float
) -> tuple[list[Outcome], list[Outcome]]:
    """Retrievals that were not needed, and those that were and are missed."""
    vain = [o for o in outcomes if scores[o.question_id] > cut and not needs_search(o)]
    return vain, [o for o in outcomes if scores[o.question_id] <= cut and needs_search(o)]


@dataclass(frozen=True)
class Dimension:
    """Something to choose questions by: its labels, and the place of each question's label (-1: it has none)."""

    name: str
    labels: list[str]
    places: list[int]

    def label(self, i: int) -> str | None:
        """Of question ``i``."""
        return self.labels[self.places[i]] if self.places[i] >= 0 else None


def worst_errors(
    answered: AnsweredRun, scores: Mapping[str, float], cut: float, dimensions: Sequence[Dimension]
) -> list[ExampleKind]:
    """The gate's errors with passages, worst first; a needless retrieval that breaks a right answer is worse than one
    that changes nothing."""
    vain, missed = _errors(answered.outcomes, scores, cut)
    vain.sort(key=lambda o: (not (o.llm_correct and not o.rag_correct), -scores[o.question_id], o.question_id))
    missed.sort(key=lambda o: (scores[o.question_id], o.question_id))
    kinds = (
        ("False positives", "retrieved although it was not needed; those that broke a right answer first", vain),
        ("False negatives", "not retrieved although it was needed; lowest score first", missed),
    )
    place = {question.id: i for i, question in enumerate(answered.questions)}
    evidence = answered.path / "evidence.jsonl"
    ids = {o.question_id for errors in (vain, missed) for o in errors[:WORST]}
    # imported answers come without a record of what was read
    records = jsonl.read(Evidence, evidence) if path_exists(evidence) else ()
    hits = {record.question_id: record.hits for record in records if record.question_id in ids}

    def with_passages(example: Example) -> Example:
        labels = {d.name: label for d in dimensions if (label := d.label(place[example.id])) is not None}
        return replace(example, hits=hits.get(example.id, ()), places=labels)

    return [
        ExampleKind(name, meaning, len(errors), list(map(with_passages, answered.examples(errors[:WORST], scores))))
        for name, meaning, errors in kinds
    ]


@dataclass(frozen=True)
class Selection:
    """The evaluated questions in one order: grades, and each scored gate's decision, for a page that measures gates on
    a subset by itself.

    ``clusters``: number of each question's, which intervals draw as a whole; empty: they draw questions.
    """

    dimensions: list[Dimension]
    llm: Bools
    rag: Bools
    decisions: dict[str, Bools]
    clusters: Sequence[int] = ()

    def to_json(self) -> str:
        """For a script element: no ``<`` in it, so no text can close the element."""
        document = {
            "dimensions": [dimension.places for dimension in self.dimensions],
            "llm": _bits(self.llm),
            "rag": _bits(self.rag),
            "decisions": {gate: _bits(decisions) for gate, decisions in self.decisions.items()},
            "clusters": self.clusters,
            "words": {name: gate_name(name) for name in ("llm_only", "all_rag", "oracle", *self.decisions)},
        }
        return json.dumps(document, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")


def _bits(values: Iterable[bool]) -> str:
    return "".join("1" if value else "0" for value in values)


def questions_of(path: Path, outcomes: Sequence[Outcome]) -> list[Question]:
    """The questions of the outcomes, in their order. Raises :class:`UserError` if any is not in the file."""
    ids = {o.question_id for o in outcomes}
    by_id = {q.id: q for q in jsonl.read(Question, path) if q.id in ids}
    missing = [o.question_id for o in outcomes if o.question_id not in by_id]
    if missing:
        raise UserError(f"{at(path)}: {first_ids(missing)} of outcomes.jsonl not in it; run eval/end_to_end.py again")
    return [by_id[o.question_id] for o in outcomes]


def select(
    questions: Sequence[Question],
    outcomes: Sequence[Outcome],
    thresholds: Mapping[str, float],
    scores: Mapping[str, Mapping[str, float]],
    clusters: Sequence[str] = (),
) -> Selection:
    """``questions``, ``outcomes`` and their ``clusters``, if any, in the same order; decisions of the gates in
    ``thresholds``; dimensions as far as the questions differ in them."""
    ranks = ranked_within([q.popularity for q in questions], [q.dataset for q in questions])
    values: dict[str, Sequence[str | None]] = {
        "data set": [q.dataset for q in questions],
        "relation": [q.relation for q in questions],
        "change": [q.fact_type for q in questions],
        "hops": [None if q.hops is None else str(q.hops) for q in questions],
        "form": [q.form for q in questions],
        "popularity": quantile_groups(ranks, _POPULARITY_GROUPS),
    }
    dimensions = []
    for name, column in values.items():
        labels = sorted({value for value in column if value is not None})
        if len(labels) > 1:
            places = [-1 if value is None else labels.index(value) for value in column]
            dimensions.append(Dimension(name, labels, places))
    decisions = {
        gate: np.array([scores[gate][o.question_id] > threshold for o in outcomes])
        for gate, threshold in thresholds.items()
    }
    llm, rag = (np.array([getattr(o, name) for o in outcomes]) for name in ("llm_correct", "rag_correct"))
    number = {name: i for i, name in enumerate(dict.fromkeys(clusters))}
    return Selection(dimensions, llm, rag, decisions, [number[name] for name in clusters])
