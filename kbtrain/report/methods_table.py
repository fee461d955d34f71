"""Whole methods beside stored answers, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from kbtrain.evaluation.pipelines import COSTS, MethodResult, MethodRow
from kbtrain.metrics.significance import Delta
from kbtrain.text_table import aligned, number, signed

HEAD = ("answers", "n", "right", "EM", "F1", "searched", *COSTS, "right: method minus this", "F1: method minus this")


def methods_text(results: Sequence[MethodResult]) -> str:
    """A table for each method."""
    return "\n\n".join(_one(result) for result in results)


def _one(result: MethodResult) -> str:
    if not result.rows:
        return f"method {result.method}: none of its {result.left_out} questions has stored answers here"
    note = f"; {result.left_out} questions without stored answers left out" if result.left_out else ""
    title = f"method {result.method} (gates cut to its number of searches, at most one a question{note})"
    return f"{title}\n{aligned(HEAD, [_cells(row) for row in result.rows])}"


def _cells(row: MethodRow) -> list[str]:
    costs = [f"{row.spent[cost]:,.0f}" if cost in row.spent else "-" for cost in COSTS]
    figures = [number(value) for value in (row.accuracy, row.exact_match, row.f1)]
    differences = [_difference(found) for found in (row.accuracy_minus, row.f1_minus)]
    return [row.name, str(row.n), *figures, f"{row.searched:.0%}", *costs, *differences]


def _difference(found: Delta | None) -> str:
    return "" if found is None else f"{signed(found.mean)} [{signed(found.low)}, {signed(found.high)}]"
