"""Transfer of thresholds: chosen on one data set or model, used on another, with a test for shifted scores.

Run folders are the sets of a transfer matrix, by data set within the runs or by model between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from several_runs import gate_input

from kbtrain.arrays import Bools, Floats
from kbtrain.errors import UserError
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.decisions import dev_table
from kbtrain.evaluation.outcomes import AccuracyKind, Correctness, Resample
from kbtrain.evaluation.run_folder import RunFolder
from kbtrain.metrics.calibration import Shift, shift
from kbtrain.metrics.significance import Delta, draw_policies
from kbtrain.metrics.thresholds import Dev, Rule, choose

DRAWS, SEED = 2_000, 0


@dataclass(frozen=True)
class TransferSet:
    """The questions of one data set (or of one model): of ``dev`` by gate, and those of test with their ``scores`` by
    gate and ``answers``."""

    name: str
    dev: Mapping[str, Dev]
    scores: Mapping[str, Floats]
    answers: Correctness


@dataclass(frozen=True)
class CarriedThreshold:
    """One gate with the threshold from ``source`` on the test questions of ``target``.

    ``gain`` is over a random gate at the same ratio (95 % interval). ``shift`` compares the dev scores of the source
    with the test scores of the target: if it is alarming, choose another threshold.
    """

    gate: str
    source: str
    target: str
    n_dev: int
    n: int
    threshold: float
    accuracy: float
    ratio: float
    gain: Delta
    shift: Shift


def carry_threshold(
    gate: str, source: tuple[str, Dev], target: tuple[str, Floats, Correctness], rule: Rule, target_ratio: float = 0.5
) -> CarriedThreshold:
    """Choose on the source's dev questions, decide for the target's test questions, both with their names. Raises
    :class:`UserError` (see ``thresholds.choose``)."""
    (source_name, dev), (target_name, scores, answers) = source, target
    threshold = choose(rule, dev, target_ratio)
    retrieve = (scores > threshold.value).astype(np.float64)
    (drawn,) = draw_policies(answers.llm, answers.rag, [retrieve], DRAWS, SEED, answers.clusters)
    return CarriedThreshold(
        gate=gate,
        source=source_name,
        target=target_name,
        n_dev=len(dev.scores),
        n=len(scores),
        threshold=threshold.value,
        accuracy=float(drawn.accuracy[0]),
        ratio=float(drawn.ratio[0]),
        gain=drawn.over_chance,
        shift=shift(dev.scores, scores),
    )


def transfer_matrix(
    gates: Sequence[str], parts: Sequence[TransferSet], rule: Rule, target_ratio: float = 0.5
) -> tuple[list[CarriedThreshold], list[str]]:
    """Every gate from every part with dev questions to every part with test questions; and the parts without dev."""
    without = [part.name for part in parts if not all(len(dev.scores) for dev in part.dev.values())]
    cells = [
        carry_threshold(
            gate,
            (source.name, source.dev[gate]),
            (target.name, target.scores[gate], target.answers),
            rule,
            target_ratio,
        )
        for gate in gates
        for source in parts
        if source.name not in without
        for target in parts
        if len(target.answers.llm)
    ]
    return cells, without


By = Literal["dataset", "model"]


def by_dataset(
    runs: Sequence[RunFolder], gates: Sequence[str], kind: AccuracyKind = "greedy", resample: Resample = "questions"
) -> list[TransferSet]:
    """One part per data set, over all runs (of one model)."""
    questions = [question for run in runs for question in run.test.questions]
    of_dev = np.array([question.dataset for run in runs for question in run.dev.questions])
    of_test = np.array([question.dataset for question in questions])
    inputs = {gate: gate_input(runs, gate) for gate in gates}
    outcomes = [outcome for run in runs for outcome in run.dev.outcomes]
    tables = {gate: dev_table(scores, outcomes, kind) for gate, scores in inputs.items()}
    answers = oc.answers([outcome for run in runs for outcome in run.test.outcomes], kind)
    clusters = oc.clusters_of(resample, questions)
    parts = []
    for name in dict.fromkeys([*of_dev.tolist(), *of_test.tolist()]):
        dev, test = of_dev == name, of_test == name
        drawn = None if clusters is None else tuple(np.array(clusters)[test].tolist())
        parts.append(
            TransferSet(
                name,
                {gate: _part(table, dev) for gate, table in tables.items()},
                {gate: scores.test[test] for gate, scores in inputs.items()},
                Correctness(kind, answers.llm[test], answers.rag[test], drawn),
            )
        )
    return parts


def _part(table: Dev, at: Bools) -> Dev:
    return Dev(table.scores[at], table.llm[at], table.rag[at], table.needed[at])


def between_models(
    runs: Sequence[RunFolder],
    gates: Sequence[str],
    rule: Rule,
    target_ratio: float,
    kind: AccuracyKind = "greedy",
    resample: Resample = "questions",
) -> tuple[list[CarriedThreshold], list[str]]:
    """Every run's gates and thresholds on every run's answers to the same questions; and the runs without dev.

    Raises :class:`UserError` where a run has no score for a question that another one answered.
    """
    names = [run.model for run in runs]
    if len(set(names)) < len(names):
        names = [run.path.name for run in runs]
    if len(set(names)) < len(names):
        raise UserError(f"key 'runs': two of {', '.join(names)} cannot be told apart by model or folder name")
    without = [name for name, run in zip(names, runs, strict=True) if not run.dev.outcomes]
    cells = []
    for gate in gates:
        for name, source in zip(names, runs, strict=True):
            if name in without:
                continue
            for other, target in zip(names, runs, strict=True):
                scores = gate_input([source], gate, [target])
                clusters = oc.clusters_of(resample, target.test.questions)
                answers = replace(oc.answers(target.test.outcomes, kind), clusters=clusters)
                dev = dev_table(scores, source.dev.outcomes, kind)
                cells.append(carry_threshold(gate, (name, dev), (other, scores.test, answers), rule, target_ratio))
    return cells, without
