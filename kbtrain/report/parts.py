"""The main gate on each part of the questions (data set, relation, hops, popularity), for readers without a browser."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kbtrain.evaluation.groups import Judged, Row, rows
from kbtrain.report.selection import Selection


@dataclass(frozen=True)
class Part:
    """One way to part the questions: its name, and a row for each of its groups."""

    name: str
    rows: list[Row]


def parts(selection: Selection, gate: str | None) -> list[Part]:
    """Every dimension of the selection; empty without a gate whose decisions are stored."""
    if gate is None or gate not in selection.decisions:
        return []
    judged = Judged(_bits(selection.llm), _bits(selection.rag), {gate: _bits(selection.decisions[gate])})
    return [
        Part(d.name, rows(judged, [None if place < 0 else d.labels[place] for place in d.places], d.labels.index))
        for d in selection.dimensions
    ]


def _bits(text: str) -> NDArray[np.float64]:
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.float64) - ord("0")
