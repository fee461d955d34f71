"""Data with which a page measures gates on a subset of the questions by itself: decisions and dimensions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError, at
from kbtrain.evaluation.groups import quantile_groups, ranked_within
from kbtrain.evaluation.run_folder import first_ids
from kbtrain.io import jsonl
from kbtrain.records import Outcome, Question
from kbtrain.report.words import gate_name

POPULARITY_GROUPS = 4


@dataclass(frozen=True)
class Dimension:
    """Something to choose questions by: its labels, and the place of each question's label (-1: it has none)."""

    name: str
    labels: list[str]
    places: list[int]


@dataclass(frozen=True)
class Selection:
    """The evaluated questions in one order: grades as bits, and each scored gate's decision.

    ``clusters``: number of each question's, which intervals draw as a whole; empty: they draw questions.
    """

    dimensions: list[Dimension]
    llm: str
    rag: str
    decisions: dict[str, str]
    clusters: list[int] = field(default_factory=list)

    def to_json(self) -> str:
        """For a script element: no ``<`` in it, so no text can close the element."""
        document: dict[str, Any] = {
            "dimensions": [dimension.places for dimension in self.dimensions],
            "llm": self.llm,
            "rag": self.rag,
            "decisions": self.decisions,
            "clusters": self.clusters,
            "words": {name: gate_name(name) for name in ("llm_only", "all_rag", "oracle", *self.decisions)},
        }
        return json.dumps(document, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")


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
    ``thresholds``."""
    decisions = {
        gate: _bits(scores[gate][o.question_id] > threshold for o in outcomes) for gate, threshold in thresholds.items()
    }
    llm, rag = (_bits(getattr(o, name) for o in outcomes) for name in ("llm_correct", "rag_correct"))
    number = {name: i for i, name in enumerate(dict.fromkeys(clusters))}
    return Selection(dimensions(questions), llm, rag, decisions, [number[name] for name in clusters])


def dimensions(questions: Sequence[Question]) -> list[Dimension]:
    """Data set, relation, kind of change, hops and popularity, as far as the questions differ in them."""
    values: dict[str, list[str | None]] = {
        "data set": [q.dataset for q in questions],
        "relation": [q.relation for q in questions],
        "change": [q.fact_type for q in questions],
        "hops": [None if q.hops is None else str(q.hops) for q in questions],
        "form": [q.form for q in questions],
        "popularity": quantile_groups(
            ranked_within([q.popularity for q in questions], [q.dataset for q in questions]), POPULARITY_GROUPS
        ),
    }
    parts = []
    for name, column in values.items():
        labels = sorted({value for value in column if value is not None})
        if len(labels) > 1:
            parts.append(Dimension(name, labels, [-1 if value is None else labels.index(value) for value in column]))
    return parts


def _bits(values: Iterable[bool]) -> str:
    return "".join("1" if value else "0" for value in values)
