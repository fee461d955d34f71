"""Scores side by side, and two finished evaluations: each gate they share, paired over the questions they share.

A score that was published for some questions only is measured on those, beside all others on the same questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kbtrain.arrays import Floats
from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.results import GateResult, decisions_of
from kbtrain.evaluation.scores import ByGate
from kbtrain.metrics.ranking import drawn_areas
from kbtrain.metrics.significance import Delta, McNemar, holm, interval, mcnemar, resampled_tables
from kbtrain.records import Outcome, Question


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


def outcomes_of_data_set(outcomes: Sequence[Outcome], questions: Iterable[Question], name: str) -> list[Outcome]:
    """The outcomes of one data set's questions. Raises :class:`UserError` for a name that none of them has."""
    by_id = {question.id: question.dataset for question in questions}
    selected = [outcome for outcome in outcomes if by_id.get(outcome.question_id) == name]
    if not selected:
        names = {by_id[o.question_id] for o in outcomes if o.question_id in by_id}
        raise UserError(f"no question of data set '{name}'; {did_you_mean(name, names)}")
    return selected


def outcomes_with_score(outcomes: Sequence[Outcome], scores: ByGate, gate: str) -> list[Outcome]:
    """The outcomes that have a score of this gate. Raises :class:`UserError` for an unknown gate."""
    if gate not in scores:
        raise UserError(f"no scores of gate '{gate}'; {did_you_mean(gate, scores)}")
    return [outcome for outcome in outcomes if outcome.question_id in scores[gate]]


def complete_scores(outcomes: Sequence[Outcome], scores: ByGate) -> tuple[dict[str, Floats], dict[str, int]]:
    """The gates that have a score for every outcome, in the outcomes' order; of the others how many they have."""
    arrays, short = {}, {}
    for gate, by_question in scores.items():
        values = [by_question[o.question_id] for o in outcomes if o.question_id in by_question]
        if len(values) == len(outcomes):
            arrays[gate] = np.array(values, dtype=np.float64)
        else:
            short[gate] = len(values)
    return arrays, short


def score_areas(
    outcomes: Sequence[Outcome],
    scores: Mapping[str, Floats],
    reference: str,
    draws: int = 2_000,
    clusters: Sequence[str] | None = None,
) -> dict[str, tuple[Delta | None, Delta | None]]:
    """Each score's oracle-normalised area, and the reference's minus it, on the same resamples (greedy answers) of the
    questions, or of whole ``clusters`` of them.

    None where the oracle gains nothing over random, and for the reference itself.
    """
    correctness = oc.answers(outcomes, "greedy")
    drawn = drawn_areas(list(scores.values()), correctness.llm, correctness.rag, draws, 0, clusters)
    if drawn is None:
        return {gate: (None, None) for gate in scores}
    values = {gate: drawn[:, i] for i, gate in enumerate(scores)}
    base = values.get(reference)
    return {
        gate: (interval(draws_of_gate), None if base is None or gate == reference else interval(base - draws_of_gate))
        for gate, draws_of_gate in values.items()
    }
