"""Comparison of two finished evaluations, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kbtrain.errors import UserError
from kbtrain.evaluation.compare import Difference, FinishedEvaluation, compare_runs, draws_entities
from kbtrain.evaluation.outcomes import entities_of
from kbtrain.evaluation.results import Results, check_result, load
from kbtrain.evaluation.run_folder import read_outcomes
from kbtrain.evaluation.scores import in_order, stored_scores
from kbtrain.report import summary
from kbtrain.report.examples import questions_of
from kbtrain.report.words import percent, points, points_interval
from kbtrain.show import aligned, p_value

HEAD = ("gate", "n", "first", "second", "difference", "95 % interval", "McNemar p", "retrieved", "then", "difference",
        "95 % interval")  # fmt: skip


@dataclass(frozen=True)
class FinishedRun:
    """A run folder with a finished evaluation."""

    name: str
    results: Results
    decided: FinishedEvaluation


def read_finished(folder: Path, name: str | None = None) -> FinishedRun:
    """Read results.json, outcomes.jsonl and the gates' scores. Raises :class:`UserError`."""
    check_result(folder / "results.json")
    results = load(folder / "results.json")
    outcomes = [o for o in read_outcomes(folder) if o.split == results.meta["split"]]
    stored = stored_scores(folder)
    scores = stored.by_gate
    for gate in results.gates:
        if gate.gate in scores:
            in_order(
                gate.gate, scores[gate.gate], [o.question_id for o in outcomes], stored.path
            )  # raises where one is missing
    named = name or folder.resolve().name
    entities: dict[str, str] = {}
    if results.meta.get("resample") == "entities":
        questions = questions_of(folder / "questions.jsonl", outcomes)
        entities = dict(zip((question.id for question in questions), entities_of(questions), strict=True))
    return FinishedRun(named, results, FinishedEvaluation(named, outcomes, results.gates, scores, entities))


def row(difference: Difference) -> list[str]:
    """The cells under :data:`HEAD`: shares in percent, differences in points."""
    d = difference
    return [
        d.gate, str(d.n), percent(d.first), percent(d.second), points(d.accuracy.mean), points_interval(d.accuracy),
        p_value(d.mcnemar.p_holm if d.mcnemar else None), percent(d.first_ratio), percent(d.second_ratio),
        points(d.ratio.mean), points_interval(d.ratio),
    ]  # fmt: skip


def caption(first: FinishedRun, second: FinishedRun, differences: Sequence[Difference]) -> str:
    """Caption of the comparison: the questions compared, and those skipped."""
    n = differences[0].n if differences else 0
    sizes = len(first.decided.outcomes), len(second.decided.outcomes)
    text = f"first: {first.name}, second: {second.name}; greedy answers of the {n} questions in both"
    if n < max(sizes):
        text += f" (of {sizes[0]} and {sizes[1]})"
    drawn = summary.bootstrap_units(first.results.meta if draws_entities(first.decided, second.decided) else {})
    text += f", in percent; intervals draw {drawn}"
    names = [[g.gate for g in run.results.gates] for run in (first, second)]
    only = [name for name in names[0] + names[1] if (name in names[0]) != (name in names[1])]
    marks = [f"{run.name}: {g.gate}{g.seen.mark}" for run in (first, second) for g in run.results.gates if g.seen.mark]
    text += f"; {', '.join(marks)}" if marks else ""
    return text + (f"; in one only: {', '.join(only)}" if only else "") + "; p after Holm's correction over the gates"


def text_comparison(first: FinishedRun, second: FinishedRun) -> str:
    """The comparison for a terminal. Raises :class:`UserError` for runs without a question in common."""
    pairs = compare_runs(first.decided, second.decided)
    if not pairs:
        raise UserError(f"{first.name} and {second.name} have no evaluated question in common: nothing can be compared")
    better = [d.gate for d in pairs if d.accuracy.above_zero]
    worse = [d.gate for d in pairs if d.accuracy.high < -1e-12]
    parts = [f"{what}: {', '.join(names)}" for what, names in (("better", better), ("worse", worse)) if names]
    verdict = "; ".join(parts) or "no gate's accuracy differs by more than chance"
    return "\n".join(
        [aligned(HEAD, [row(d) for d in pairs]), caption(first, second, pairs), f"second against first, {verdict}"]
    )
