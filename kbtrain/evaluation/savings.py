"""Searches that gates save, and accuracy against always searching (All-RAG), best gate on dev first.

Each gate is measured at the threshold that is noted for it, and at the one with the most right answers on dev. The
gate to be used, and a gate's best key, has the largest area on dev: one threshold's savings are luck
more often (studies/notes/demo.md). What a gate saves and loses is measured on test, where nothing was chosen;
:mod:`kbtrain.metrics.thresholds` has a threshold with a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kbtrain.arrays import Floats
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.outcomes import AccuracyKind, Correctness
from kbtrain.gate.card import Saves
from kbtrain.metrics import thresholds
from kbtrain.metrics.ranking import normalised_area
from kbtrain.metrics.significance import Delta, PolicyDraws, blocks_in_order, draw_policies, interval, question_counts
from kbtrain.records import Outcome

LIMIT = 0.02  # of All-RAG's accuracy: a loss that the report rules out, or not


@dataclass(frozen=True)
class ThresholdSaving:
    """A gate at one threshold. All figures are shares of the questions, ``Delta`` with 95 % intervals.

    ``dev_saved``, ``saved``: searches skipped on dev and on test; ``change``: accuracy minus All-RAG's;
    ``over_random``: accuracy minus that of skipping as many searches at random.
    """

    threshold: float
    dev_saved: float
    accuracy: float
    saved: Delta
    change: Delta
    over_random: Delta


@dataclass(frozen=True)
class Saving:
    """One gate at its ``noted`` threshold, chosen by ``rule``, at that of best_accuracy (``most_right``), and at that
    of the fewest searches with a promised loss (``promised``; None where ``promise`` has none)."""

    gate: str
    rule: str
    n_dev: int
    n: int
    dev_area: float | None
    noted: ThresholdSaving
    most_right: ThresholdSaving
    promised: ThresholdSaving | None
    promise: thresholds.Promised
    saves: Saves = "searches"

    @property
    def other(self) -> ThresholdSaving | None:
        """The threshold with the most right answers on dev; None where it is the noted one."""
        return None if self.noted.threshold == self.most_right.threshold else self.most_right

    @property
    def certain(self) -> bool:
        """True if the gate's choice of searches is better than chance, by the interval on test."""
        return self.noted.over_random.above_zero


@dataclass(frozen=True)
class SavingOptions:
    """Options of the gates' comparison: ``clusters`` of test questions are drawn whole (None: questions are drawn).

    ``settings``: threshold and rule by gate; without one the threshold with the most right answers on dev.
    ``after_search``: gates that read what was found, which save passages alone. ``training``: questions of each gate,
    which rule best_accuracy reads too. ``max_loss`` and ``delta``: of the promised threshold.
    """

    kind: AccuracyKind = "greedy"
    draws: int = 2_000
    seed: int = 0
    clusters: Sequence[str] | None = None
    settings: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    after_search: Collection[str] = ()
    training: Mapping[str, thresholds.Training] = field(default_factory=dict)
    max_loss: float = LIMIT
    delta: float = 0.1


def savings(
    dev: Sequence[Outcome],
    test: Sequence[Outcome],
    scores: Mapping[str, Mapping[str, float]],
    options: SavingOptions | None = None,
) -> list[Saving]:
    """Of every gate in ``scores`` (higher = retrieval more needed), best on dev first.

    The result is empty without dev questions. Where dev was not sampled, its greedy answers count as ``expected``.
    """
    if not dev or not test or not scores:
        return []
    options = options or SavingOptions()
    before, correctness = oc.answers(dev, oc.dev_kind(dev, options.kind)), oc.answers(test, options.kind)
    cuts, areas, promises = {}, {}, {}
    columns = {gate: np.array([of[o.question_id] for o in test]) for gate, of in scores.items()}
    on_dev = {gate: np.array([of[o.question_id] for o in dev]) for gate, of in scores.items()}
    searched = []
    for gate in scores:
        training = options.training.get(gate, thresholds.Training())
        table = thresholds.Dev(on_dev[gate], before.llm, before.rag, train=training)
        right = thresholds.choose("best_accuracy", table).value
        chosen = options.settings.get(gate, (right, "best_accuracy"))
        promises[gate] = thresholds.promised(table, options.max_loss, options.delta)
        sure = promises[gate].guarantee
        cuts[gate] = chosen[1], (chosen[0], right, right if sure is None else sure.threshold)
        areas[gate] = normalised_area(on_dev[gate], before.llm, before.rag)
        searched += [(columns[gate] > threshold).astype(np.float64) for threshold in cuts[gate][1]]
    llm, rag = correctness.llm, correctness.rag
    drawn = iter(draw_policies(llm, rag, searched, options.draws, options.seed, options.clusters))
    rows = []
    for gate in scores:
        rule, thresholds_of = cuts[gate]
        at_noted, at_right, at_promised = (_setting(cut, on_dev[gate], next(drawn)) for cut in thresholds_of)
        rows.append(
            Saving(
                gate, rule, len(dev), len(test), areas[gate], noted=at_noted, most_right=at_right,
                promised=at_promised if promises[gate].guarantee else None, promise=promises[gate],
                saves="passages" if gate in options.after_search else "searches",
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: -math.inf if row.dev_area is None else row.dev_area, reverse=True)


def _setting(threshold: float, on_dev: Floats, drawn: PolicyDraws) -> ThresholdSaving:
    return ThresholdSaving(
        threshold, dev_saved=float(1 - (on_dev > threshold).mean()), accuracy=float(drawn.accuracy[0]),
        saved=interval(1 - drawn.ratio), change=drawn.over_always, over_random=drawn.over_chance,
    )  # fmt: skip


def band(scores: Floats, answers: Correctness, ratios: Floats, draws: int = 1_000) -> tuple[Floats, Floats]:
    """95 % interval of a gate's accuracy at each share of searches, by resampling the questions."""
    order, starts = blocks_in_order(scores)
    gain, n = (answers.rag - answers.llm)[order], len(order)
    rows = []
    for counts in question_counts(n, draws, 0, answers.clusters):
        drawn, size = counts[:, order], counts.sum(axis=1)
        sizes = np.cumsum(np.add.reduceat(drawn, starts, axis=1), axis=1) / size[:, None]
        gains = np.cumsum(np.add.reduceat(drawn * gain, starts, axis=1), axis=1) / size[:, None]
        plain = counts @ answers.llm / size
        rows += [np.interp(ratios, [0, *x], [0, *y]) + base for x, y, base in zip(sizes, gains, plain, strict=True)]
    low, high = np.quantile(np.stack(rows), [0.025, 0.975], axis=0)
    return low, high


@dataclass(frozen=True)
class FourFold:
    """Numbers of questions by decision and need. Needed: right with retrieval and wrong without.

    ``broken`` counts needless searches that made a right answer wrong, ``spared`` skipped searches that would have.
    """

    searched_well: int
    in_vain: int
    broken: int
    missed: int
    saved_well: int
    spared: int


def four_fold(outcomes: Sequence[Outcome], scores: Mapping[str, float], threshold: float) -> FourFold:
    """Count a gate's decisions on graded greedy answers."""
    searched = np.array([scores[o.question_id] > threshold for o in outcomes], dtype=bool)
    needed = oc.is_needed(outcomes)
    harmed = np.array([o.llm_correct and not o.rag_correct for o in outcomes], dtype=bool)
    counts = (searched & needed, searched & ~needed, searched & harmed, ~searched & needed, ~searched & ~needed,
              ~searched & harmed)  # fmt: skip
    return FourFold(*(int(members.sum()) for members in counts))
