"""The table of eval/signals.py: how well scores tell, and what their order is worth."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kbtrain.metrics.ranking import Separation
from kbtrain.metrics.significance import Delta
from kbtrain.text_table import aligned, number, signed

Areas = tuple[Delta | None, Delta | None]


def signal_document(found: Sequence[Separation], areas: Mapping[str, Areas]) -> list[dict[str, Any]]:
    """One object per score; ``area`` and ``area_minus`` (the reference's minus it) are null where not defined."""
    made = []
    for one in found:
        area, minus = areas[one.name]
        extra = {"area": area and dataclasses.asdict(area), "area_minus": minus and dataclasses.asdict(minus)}
        made.append(dataclasses.asdict(one) | extra)
    return made


def signal_table(found: Sequence[Separation], areas: Mapping[str, Areas], reference: str) -> str:
    """One row per score, the best first."""
    minus = f"{reference} minus this"
    head = ("score", "AUROC", "95 % interval", minus, "area", minus, "quartiles, positive", "quartiles, negative")
    ordered = sorted(found, key=lambda one: -one.auroc.mean)
    return aligned(head, [_cells(one, areas[one.name]) for one in ordered])


def _cells(one: Separation, areas: Areas) -> list[str]:
    quartiles = [" ".join(f"{value:.4g}" for value in values[1:4]) for values in (one.positive, one.negative)]
    return [one.name, number(one.auroc.mean), f"[{number(one.auroc.low)}, {number(one.auroc.high)}]",
            _difference(one.minus), *map(_difference, areas), *quartiles]  # fmt: skip


def _difference(found: Delta | None) -> str:
    return "" if found is None else f"{signed(found.mean)} [{signed(found.low)}, {signed(found.high)}]"
