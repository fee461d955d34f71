"""Compare two finished evaluations: each gate that they share, paired over the questions that they share, as text.

Reads results.json, outcomes.jsonl and scores/ of both run folders.

Examples:
  python studies/compare_runs.py --runs "[runs/demo, runs/demo-full]"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from different_paths import DifferentPaths
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.evaluation.outcomes import answers, entities_of
from kbtrain.evaluation.results import Results, check_result, decisions_of, load
from kbtrain.evaluation.run_folder import read_outcomes
from kbtrain.evaluation.scores import ByGate, in_order, stored_scores
from kbtrain.io import jsonl
from kbtrain.metrics.significance import Delta, McNemar, holm, interval, mcnemar, resampled_means, widened
from kbtrain.questions.checks import leak_key
from kbtrain.records import Outcome, Question
from kbtrain.report import summary
from kbtrain.report.examples import questions_of
from kbtrain.report.words import percent, points, points_interval
from kbtrain.show import aligned, p_value

HEAD = ("gate", "n", "first", "second", "difference", "95 % interval", "McNemar p", "retrieved", "then", "difference",
        "95 % interval")  # fmt: skip


class CompareRunsConfig(Config):
    runs: DifferentPaths = Field(min_length=2, max_length=2, description="two run folders with results.json")


def main(config: CompareRunsConfig) -> None:
    first, second = (read_finished(path) for path in config.runs)
    print(text_comparison(first, second))


@dataclass(frozen=True)
class FinishedRun:
    """A run folder with a finished evaluation: its results, greedy outcomes, and scores by gate and question id.

    ``entities``: of each question id, the one that intervals draw with all its questions; empty: they draw questions.
    ``asked``: text and options by question id: ids that were made of a file's name may be of other questions.
    """

    name: str
    results: Results
    outcomes: Sequence[Outcome]
    scores: ByGate
    entities: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, str] = field(default_factory=dict)


def read_finished(folder: Path) -> FinishedRun:
    """Read results.json, outcomes.jsonl and the gates' scores. Raises :class:`UserError`."""
    check_result(folder / "results.json")
    results, stored = load(folder / "results.json"), stored_scores(folder)
    outcomes = [o for o in read_outcomes(folder) if o.split == results.meta["split"]]
    ids = [outcome.question_id for outcome in outcomes]
    for gate in (gate.gate for gate in results.gates if gate.gate in stored.by_gate):
        in_order(gate, stored.by_gate[gate], ids, stored.path)  # raises where one is missing
    entities: dict[str, str] = {}
    if results.meta.get("resample") == "entities":
        entities = dict(zip(ids, entities_of(questions_of(folder / "questions.jsonl", outcomes)), strict=True))
    asked = {question.id: leak_key(question) for question in jsonl.read(Question, folder / "questions.jsonl")}
    return FinishedRun(folder.resolve().name, results, outcomes, stored.by_gate, entities, asked)


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


def compare_runs(first: FinishedRun, second: FinishedRun, draws: int = 10_000) -> list[Difference]:
    """All gates with decisions in both; McNemar's p-values with Holm's correction over the gates.

    Intervals draw entities if those of both evaluations do. Raises :class:`UserError` for two questions of one id.
    """
    places = [{o.question_id: i for i, o in enumerate(run.outcomes)} for run in (first, second)]
    shared = [i for i in places[0] if i in places[1]]
    if not shared:
        return []
    if other := next((i for i in shared if first.asked.get(i) != second.asked.get(i)), None):
        raise UserError(f"'{first.name}' and '{second.name}': question '{other}' is another one in each; give them ids")
    clusters = [first.entities[i] for i in shared] if first.entities and second.entities else None
    at = [np.array([place[i] for i in shared]) for place in places]
    pairs = {}
    for gate in (g.gate for g in first.results.gates):
        a, b = (answers_of(run, gate) for run in (first, second))
        if a is not None and b is not None:
            pairs[gate] = a[at[0]], b[at[1]]
    if not pairs:
        return []
    changes = np.concatenate([b - a for a, b in pairs.values()], axis=1)
    drawn = np.split(resampled_means(changes, draws, 0, clusters), len(pairs), axis=1)
    rows = [_difference(gate, *pair, means) for (gate, pair), means in zip(pairs.items(), drawn, strict=True)]
    adjusted = iter(holm([d.mcnemar.p for d in rows if d.mcnemar is not None]))
    return [replace(d, mcnemar=d.mcnemar and replace(d.mcnemar, p_holm=next(adjusted))) for d in rows]


def _difference(gate: str, a: Floats, b: Floats, drawn: Floats) -> Difference:
    """``a``, ``b``: (n, 2), correctness and decision of each question; ``drawn``: means of b - a in each resample."""
    return Difference(
        gate=gate,
        n=len(a),
        first=float(a[:, 0].mean()),
        second=float(b[:, 0].mean()),
        first_ratio=float(a[:, 1].mean()),
        second_ratio=float(b[:, 1].mean()),
        accuracy=widened(interval(drawn[:, 0]), b[:, 0] - a[:, 0]),
        ratio=interval(drawn[:, 1]),
        mcnemar=mcnemar(a[:, 0], b[:, 0]),
    )


def answers_of(run: FinishedRun, gate: str) -> Floats | None:
    """Correctness and decision of each question, (n, 2); None if the decisions are not known."""
    graded, result = answers(run.outcomes, "greedy"), next((g for g in run.results.gates if g.gate == gate), None)
    ids = [outcome.question_id for outcome in run.outcomes]
    retrieve = None if result is None else decisions_of(result, graded, ids, run.scores)
    if retrieve is None:
        return None
    return np.stack([np.where(retrieve > 0.5, graded.rag, graded.llm), retrieve], axis=1)


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
    sizes = len(first.outcomes), len(second.outcomes)
    text = f"first: {first.name}, second: {second.name}; greedy answers of the {n} questions in both"
    if n < max(sizes):
        text += f" (of {sizes[0]} and {sizes[1]})"
    drawn = summary.bootstrap_units(first.results.meta if first.entities and second.entities else {})
    text += f", in percent; intervals draw {drawn}"
    names = [[g.gate for g in run.results.gates] for run in (first, second)]
    only = [name for name in names[0] + names[1] if (name in names[0]) != (name in names[1])]
    marks = [f"{run.name}: {g.gate}{g.seen.mark}" for run in (first, second) for g in run.results.gates if g.seen.mark]
    text += f"; {', '.join(marks)}" if marks else ""
    return text + (f"; in one only: {', '.join(only)}" if only else "") + "; p after Holm's correction over the gates"


def text_comparison(first: FinishedRun, second: FinishedRun) -> str:
    """The comparison for a terminal. Raises :class:`UserError` for runs without a question in common."""
    pairs = compare_runs(first, second)
    if not pairs:
        raise UserError(f"{first.name} and {second.name} have no evaluated question in common: nothing can be compared")
    better = [d.gate for d in pairs if d.accuracy.above_zero]
    worse = [d.gate for d in pairs if d.accuracy.high < -1e-12]
    parts = [f"{what}: {', '.join(names)}" for what, names in (("better", better), ("worse", worse)) if names]
    verdict = "; ".join(parts) or "no gate's accuracy differs by more than chance"
    return "\n".join(
        [aligned(HEAD, [row(d) for d in pairs]), caption(first, second, pairs), f"second against first, {verdict}"]
    )


if __name__ == "__main__":
    run_script(main, CompareRunsConfig, __doc__)
