"""Does a threshold carry over? Every gate from where it was chosen to where it is used, with a test for shift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kbtrain.evaluation.groups import Judged, rows
from kbtrain.metrics.calibrate_shift import Shift, shift
from kbtrain.metrics.significance import Delta
from kbtrain.metrics.thresholds import Dev, Rule, choose

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """The dev and test questions of one data set (or of one model): scores by gate, and both answers' correctness."""

    name: str
    dev_scores: Mapping[str, Floats]
    dev_llm: Floats
    dev_rag: Floats
    test_scores: Mapping[str, Floats]
    test_llm: Floats
    test_rag: Floats


@dataclass(frozen=True)
class Carried:
    """One gate with the threshold from ``source`` on the test questions of ``target``.

    ``gain`` is over a random gate at the same ratio (95 % interval). ``shift`` compares the dev scores of the source
    with the test scores of the target: if it is alarming, the threshold should be chosen anew.
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


def carry(gate: str, source: Part, target: Part, rule: Rule, target_ratio: float = 0.5) -> Carried:
    """Choose on the source's dev questions, decide for the target's test questions. Raises :class:`UserError`
    (see ``thresholds.choose``)."""
    needed = (source.dev_rag > source.dev_llm).astype(np.float64)
    dev = Dev(source.dev_scores[gate], source.dev_llm, source.dev_rag, needed)
    threshold = choose(rule, dev, target_ratio)
    scores = target.test_scores[gate]
    retrieve = (scores > threshold.value).astype(np.float64)
    cell = rows(Judged(target.test_llm, target.test_rag, {gate: retrieve}), [target.name] * len(scores))[0].gates[gate]
    return Carried(
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


def matrix(
    gates: Sequence[str], parts: Sequence[Part], rule: Rule, target_ratio: float = 0.5
) -> tuple[list[Carried], list[str]]:
    """Every gate from every part with dev questions to every part with test questions; and the parts without dev."""
    without = [part.name for part in parts if not len(part.dev_llm)]
    found = [
        carry(gate, source, target, rule, target_ratio)
        for gate in gates
        for source in parts
        if len(source.dev_llm)
        for target in parts
        if len(target.test_llm)
    ]
    return found, without
