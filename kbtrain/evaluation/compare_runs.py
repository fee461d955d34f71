"""Two finished evaluations side by side: each gate they share, paired over the questions they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kbtrain.arrays import Floats
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.results import GateResult, decisions_of
from kbtrain.metrics.significance import Delta, McNemar, holm, interval, mcnemar, resampled_tables
from kbtrain.records import Outcome


@dataclass(frozen=True)
class FinishedEvaluation:
    """A finished evaluation: its greedy outcomes, gates, and scores by gate and question id.

    ``entities``: of each question id, the one that intervals draw with all its questions; empty: they draw questions.
    """

    name: str
    outcomes: Sequence[Outcome]
    gates: Sequence[GateResult]
    scores: Mapping[str, Mapping[str, float]]
    entities: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """One gate in both evaluations on the ``n`` questions they share: second minus first, with 95 % intervals.

    A gate whose decisions are not stored (random, relation-only) has no row.
    """

    gate: str
    n: int
    first: float
    second: float
    first_ratio: float
    second_ratio: float
    accuracy: Delta
    ratio: Delta
    mcnemar: McNemar | None


def compare_runs(first: FinishedEvaluation, second: FinishedEvaluation, draws: int = 10_000) -> list[Difference]:
    """All gates with decisions in both; McNemar's p-values with Holm's correction over the gates.

    Intervals draw entities if those of both evaluations do.
    """
    places = [{o.question_id: i for i, o in enumerate(run.outcomes)} for run in (first, second)]
    shared = [i for i in places[0] if i in places[1]]
    if not shared:
        return []
    clusters = [first.entities[i] for i in shared] if draws_entities(first, second) else None
    at = [np.array([place[i] for i in shared]) for place in places]
    pairs = {}
    for gate in (g.gate for g in first.gates):
        a, b = (answers_of(run, gate) for run in (first, second))
        if a is not None and b is not None:
            pairs[gate] = a[at[0]], b[at[1]]
    drawn = resampled_tables([b - a for a, b in pairs.values()], draws, 0, clusters)
    rows = [_difference(gate, *pair, means) for (gate, pair), means in zip(pairs.items(), drawn, strict=True)]
    adjusted = iter(holm([d.mcnemar.p for d in rows if d.mcnemar is not None]))
    return [replace(d, mcnemar=d.mcnemar and replace(d.mcnemar, p_holm=next(adjusted))) for d in rows]


def draws_entities(first: FinishedEvaluation, second: FinishedEvaluation) -> bool:
    """True if the intervals of both evaluations draw entities with all their questions."""
    return bool(first.entities and second.entities)


def _difference(gate: str, a: Floats, b: Floats, drawn: Floats) -> Difference:
    """``a``, ``b``: (n, 2), correctness and decision of each question; ``drawn``: means of b - a in each resample."""
    return Difference(
        gate=gate,
        n=len(a),
        first=float(a[:, 0].mean()),
        second=float(b[:, 0].mean()),
        first_ratio=float(a[:, 1].mean()),
        second_ratio=float(b[:, 1].mean()),
        accuracy=interval(drawn[:, 0]),
        ratio=interval(drawn[:, 1]),
        mcnemar=mcnemar(a[:, 0], b[:, 0]),
    )


def answers_of(run: FinishedEvaluation, gate: str) -> Floats | None:
    """Correctness and decision of each question, (n, 2); None if the decisions are not known."""
    answers, result = oc.answers(run.outcomes, "greedy"), next((g for g in run.gates if g.gate == gate), None)
    ids = [outcome.question_id for outcome in run.outcomes]
    retrieve = None if result is None else decisions_of(result, answers, ids, run.scores)
    if retrieve is None:
        return None
    return np.stack([np.where(retrieve > 0.5, answers.rag, answers.llm), retrieve], axis=1)
