"""Run folders as the parts of a transfer matrix: by data set within the runs, or by model between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from kbtrain.errors import UserError
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.outcomes import AccuracyKind
from kbtrain.evaluation.run_folder import RunFolder, gate_input
from kbtrain.evaluation.transfer import Carried, Part, carry
from kbtrain.metrics.thresholds import Rule

By = Literal["dataset", "model"]


def by_dataset(runs: Sequence[RunFolder], gates: Sequence[str], kind: AccuracyKind = "greedy") -> list[Part]:
    """One part per data set, over all runs (of one model)."""
    sides = ([run.dev for run in runs], [run.test for run in runs])
    inputs = {gate: gate_input(runs, gate) for gate in gates}
    names = [[question.dataset for part in side for question in part.questions] for side in sides]
    answers = [oc.answers([o for part in side for o in part.outcomes], kind) for side in sides]
    found = []
    for name in dict.fromkeys([*names[0], *names[1]]):
        dev, test = (np.array([other == name for other in side], dtype=bool) for side in names)
        found.append(
            Part(
                name,
                {gate: made.dev[dev] for gate, made in inputs.items()},
                answers[0].llm[dev],
                answers[0].rag[dev],
                {gate: made.test[test] for gate, made in inputs.items()},
                answers[1].llm[test],
                answers[1].rag[test],
            )
        )
    return found


def between_models(
    runs: Sequence[RunFolder], gates: Sequence[str], rule: Rule, target_ratio: float, kind: AccuracyKind = "greedy"
) -> list[Carried]:
    """Every run's gates and thresholds on every run's answers to the same questions.

    Raises :class:`UserError` where a run has no score for a question that another one answered.
    """
    names = [run.model for run in runs]
    if len(set(names)) < len(names):
        names = [run.path.name for run in runs]
    if len(set(names)) < len(names):
        raise UserError(f"runs: two of {', '.join(names)} cannot be told apart by model or folder name")
    found = []
    for gate in gates:
        for name, source in zip(names, runs, strict=True):
            for other, target in zip(names, runs, strict=True):
                pair = _pair(gate, name, source, other, target, kind)
                found.append(carry(gate, *pair, rule, target_ratio))
    return found


def _pair(
    gate: str, name: str, source: RunFolder, other: str, target: RunFolder, kind: AccuracyKind
) -> tuple[Part, Part]:
    """The source's scores of its own dev questions, and of the target's test questions."""
    made = gate_input([source], gate, [target])
    dev, test = oc.answers(source.dev.outcomes, kind), oc.answers(target.test.outcomes, kind)
    nothing: dict[str, oc.Floats] = {}
    empty = np.zeros(0)
    return (
        Part(name, {gate: made.dev}, dev.llm, dev.rag, nothing, empty, empty),
        Part(other, nothing, empty, empty, {gate: made.test}, test.llm, test.rag),
    )
