"""Transfer of thresholds: chosen on one data set or model, used on another, with a test for shifted scores.

Run folders are the sets of a transfer matrix, by data set within the runs or by model between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kbtrain.arrays import Floats
from kbtrain.errors import UserError
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.groups import JudgedQuestions, group_rows
from kbtrain.evaluation.outcomes import AccuracyKind, Resample
from kbtrain.evaluation.run_folder import RunFolder, gate_input
from kbtrain.metrics.calibration import Shift, shift
from kbtrain.metrics.significance import Delta
from kbtrain.metrics.thresholds import Dev, Rule, choose


@dataclass(frozen=True)
class TransferSet:
    """The dev and test questions of one data set (or of one model): scores by gate, and both answers' correctness.

    ``dev_needed``: 1 where the greedy answers need a retrieval; None: where ``dev_rag`` is above ``dev_llm``.
    ``clusters`` of the test questions, which intervals draw as a whole; None: they draw questions.
    """

    name: str
    dev_scores: Mapping[str, Floats]
    dev_llm: Floats
    dev_rag: Floats
    test_scores: Mapping[str, Floats]
    test_llm: Floats
    test_rag: Floats
    dev_needed: Floats | None = None
    clusters: tuple[str, ...] | None = None


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
    gate: str, source: TransferSet, target: TransferSet, rule: Rule, target_ratio: float = 0.5
) -> CarriedThreshold:
    """Choose on the source's dev questions, decide for the target's test questions. Raises :class:`UserError`
    (see ``thresholds.choose``)."""
    needed = source.dev_needed
    if needed is None:
        needed = (source.dev_rag > source.dev_llm).astype(np.float64)
    dev = Dev(source.dev_scores[gate], source.dev_llm, source.dev_rag, needed)
    threshold = choose(rule, dev, target_ratio)
    scores = target.test_scores[gate]
    retrieve = (scores > threshold.value).astype(np.float64)
    judged = JudgedQuestions(target.test_llm, target.test_rag, {gate: retrieve}, target.clusters)
    cell = group_rows(judged, [target.name] * len(scores))[0].gates[gate]
    return CarriedThreshold(
        gate=gate,
        source=source.name,
        target=target.name,
        n_dev=len(dev.scores),
        n=len(scores),
        threshold=threshold.value,
        accuracy=cell.accuracy,
        ratio=cell.ratio,
        gain=cell.gain,
        shift=shift(dev.scores, scores),
    )


def transfer_matrix(
    gates: Sequence[str], parts: Sequence[TransferSet], rule: Rule, target_ratio: float = 0.5
) -> tuple[list[CarriedThreshold], list[str]]:
    """Every gate from every part with dev questions to every part with test questions; and the parts without dev."""
    without = [part.name for part in parts if not len(part.dev_llm)]
    cells = [
        carry_threshold(gate, source, target, rule, target_ratio)
        for gate in gates
        for source in parts
        if len(source.dev_llm)
        for target in parts
        if len(target.test_llm)
    ]
    return cells, without


By = Literal["dataset", "model"]


def by_dataset(
    runs: Sequence[RunFolder], gates: Sequence[str], kind: AccuracyKind = "greedy", resample: Resample = "questions"
) -> list[TransferSet]:
    """One part per data set, over all runs (of one model)."""
    sides = ([run.dev for run in runs], [run.test for run in runs])
    inputs = {gate: gate_input(runs, gate) for gate in gates}
    names = [[question.dataset for part in side for question in part.questions] for side in sides]
    on_dev, on_test = ([o for part in side for o in part.outcomes] for side in sides)
    answers = oc.dev_answers(on_dev, kind), oc.answers(on_test, kind)
    needed = oc.is_needed(on_dev).astype(np.float64)
    clusters = oc.clusters_of(resample, [question for part in sides[1] for question in part.questions])
    parts = []
    for name in dict.fromkeys([*names[0], *names[1]]):
        dev, test = (np.array([other == name for other in side], dtype=bool) for side in names)
        parts.append(
            TransferSet(
                name,
                {gate: scores.dev[dev] for gate, scores in inputs.items()},
                answers[0].llm[dev],
                answers[0].rag[dev],
                {gate: scores.test[test] for gate, scores in inputs.items()},
                answers[1].llm[test],
                answers[1].rag[test],
                needed[dev],
                None if clusters is None else tuple(name for name, of in zip(clusters, test, strict=True) if of),
            )
        )
    return parts


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
                pair = _pair(gate, (name, source), (other, target), kind, resample)
                cells.append(carry_threshold(gate, *pair, rule, target_ratio))
    return cells, without


def _pair(
    gate: str, of: tuple[str, RunFolder], to: tuple[str, RunFolder], kind: AccuracyKind, resample: Resample
) -> tuple[TransferSet, TransferSet]:
    """The source's scores of its own dev questions, and of the target's test questions; both sides with their names."""
    (name, source), (other, target) = of, to
    clusters = oc.clusters_of(resample, target.test.questions)
    scores = gate_input([source], gate, [target])
    dev, test = oc.dev_answers(source.dev.outcomes, kind), oc.answers(target.test.outcomes, kind)
    needed = oc.is_needed(source.dev.outcomes).astype(np.float64)
    nothing: dict[str, Floats] = {}
    empty = np.zeros(0)
    return (
        TransferSet(name, {gate: scores.dev}, dev.llm, dev.rag, nothing, empty, empty, needed),
        TransferSet(other, nothing, empty, empty, {gate: scores.test}, test.llm, test.rag, None, clusters),
    )
