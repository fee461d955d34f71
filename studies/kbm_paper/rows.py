"""Gates by groups of questions: data set, relation, hops, popularity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kbtrain.arrays import Floats
from kbtrain.evaluation.outcomes import Correctness
from kbtrain.metrics.significance import Delta, PolicyDraws, draw_policies

DRAWS = 2_000  # resamples of a group


@dataclass(frozen=True)
class Cell:
    """One gate on one group. Shares in [0, 1]; None for a mean over no question.

    ``random`` is the expected accuracy of a random gate at the same ratio, ``gain`` the difference to it with its 95 %
    interval; ``known`` and ``unknown``: accuracy without retrieval of the ``n_known`` questions that the gate does not
    retrieve for, and of the others (figure 5).
    """

    ratio: float
    accuracy: float
    random: float
    gain: Delta
    n_known: int
    known: float | None
    unknown: float | None


@dataclass(frozen=True)
class GroupRow:
    """One group of ``n`` questions: accuracy without and with retrieval for all, and every gate's :class:`Cell`."""

    group: str
    n: int
    llm_only: float
    all_rag: float
    gates: dict[str, Cell]


def group_rows(
    answers: Correctness,
    decisions: Mapping[str, Floats],
    groups: Sequence[str | None],
    order: Callable[[str], Any] = str,
) -> list[tuple[GroupRow, dict[str, Floats]]]:
    """One row per group (questions with group None are in none of them), sorted by ``order`` of the names, with its
    gates' gains over random: as observed, then in each resample. ``decisions``: of each gate, 1 = retrieve."""
    names = sorted({group for group in groups if group is not None}, key=order)
    places = np.array([-1 if group is None else names.index(group) for group in groups])
    return [_row(answers, decisions, name, np.flatnonzero(places == i), i) for i, name in enumerate(names)]


def _row(
    answers: Correctness, decisions: Mapping[str, Floats], name: str, at: NDArray[np.intp], seed: int
) -> tuple[GroupRow, dict[str, Floats]]:
    llm, rag = answers.llm[at], answers.rag[at]
    retrieve = [of[at] for of in decisions.values()]
    clusters = None if answers.clusters is None else [answers.clusters[i] for i in at]
    policies = dict(zip(decisions, draw_policies(llm, rag, retrieve, DRAWS, seed, clusters), strict=True))
    cells = {gate: _cell(llm, p, of) for p, (gate, of) in zip(retrieve, policies.items(), strict=True)}
    gains = {gate: of.gain for gate, of in policies.items()}
    return GroupRow(name, len(at), float(llm.mean()), float(rag.mean()), cells), gains


def _cell(plain: Floats, retrieve: Floats, drawn: PolicyDraws) -> Cell:
    skipped = retrieve < 0.5
    return Cell(
        ratio=float(drawn.ratio[0]),
        accuracy=float(drawn.accuracy[0]),
        random=float(drawn.chance[0]),
        gain=drawn.over_chance,
        n_known=int(skipped.sum()),
        known=float(plain[skipped].mean()) if skipped.any() else None,
        unknown=float(plain[~skipped].mean()) if (~skipped).any() else None,
    )
