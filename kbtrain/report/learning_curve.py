"""Table and figure of learning curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from kbtrain.evaluation.learning_curve import CurvePoint
from kbtrain.report.curves import gate_looks
from kbtrain.report.tables import Column, Table, Value
from kbtrain.show import COLOURS, FILE_WIDTH, legend_above, new_figure, page


def layout(points: Sequence[CurvePoint], n_test: int) -> Table:
    """One row for each gate, key and size: means over the draws, and the area's 95 % interval over them (Student's t).

    The note says at which sizes the draws rank a gate first: its area minus any other's, paired by draw, is above 0.
    """
    columns = [Column("gate", "text"), Column("label", "text"), Column("questions", "count"), Column("draws", "count"),
               Column("area", "decimal"), Column("low", "decimal"), Column("high", "decimal"),
               Column("best, corrected", "decimal"),
               Column("AUROC wrong", "decimal"), Column("AUROC needed", "decimal")]  # fmt: skip
    groups = dict.fromkeys((point.gate, point.key, point.n) for point in sorted(points, key=lambda p: (p.gate, p.key)))
    rows: list[list[Value]] = []
    for gate, key, n in groups:
        part = [point for point in points if (point.gate, point.key, point.n) == (gate, key, n)]
        areas = [point.area for point in part if point.area is not None]
        low, high = interval_of_draws(areas)
        wrong, needed = [p.auroc_wrong for p in part], [p.auroc_needed for p in part]
        best = [point.corrected.mean for point in part if point.corrected is not None]
        rows.append([gate, key, n, len(part), _mean(areas), low, high, _mean(best), _mean(wrong), _mean(needed)])
    note = (
        f"Means over draws of training questions, on {n_test} test questions. Area: random order 0, oracle's order 1. "
        "Low and high: 95 % interval of the mean over the draws, without the test questions' own chance. "
        "Best, corrected: area in the draws in which the gate is the best, corrected for that choice. "
        + " ".join(_ranking(points, key) for key in dict.fromkeys(point.key for point in points))
    )
    return Table("learning_curve", "Learning curves", note, columns, rows)


def interval_of_draws(values: Sequence[float]) -> tuple[float | None, float | None]:
    """95 % interval of a mean over draws, by Student's t; None for fewer than two."""
    if len(values) < 2:
        return None, None
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def first_by_draws(points: Sequence[CurvePoint], key: str, n: int) -> str | None:
    """The gate whose area is above that of every other gate in the mean over draws, with an interval above 0."""
    areas: dict[str, dict[int, float]] = {}
    for point in points:
        if (point.key, point.n) == (key, n) and point.area is not None:
            areas.setdefault(point.gate, {})[point.draw] = point.area
    if len(areas) < 2:
        return None
    best = max(areas, key=lambda gate: statistics.fmean(areas[gate].values()))
    for gate in areas.keys() - {best}:
        paired = [area - areas[gate][draw] for draw, area in areas[best].items() if draw in areas[gate]]
        low, _ = interval_of_draws(paired)
        if low is None or low <= 0:
            return None
    return best


def _ranking(points: Sequence[CurvePoint], key: str) -> str:
    sizes = sorted({point.n for point in points if point.key == key})
    first = {n: gate for n in sizes if (gate := first_by_draws(points, key, n)) is not None}
    ranked = ", ".join(f"{gate} with {n:,}" for n, gate in first.items())
    rest = ", ".join(f"{n:,}" for n in sizes if n not in first)
    return (
        f"Label {key}: "
        + (f"first by the draws: {ranked}. " if ranked else "")
        + (f"No gate is ranked first with {rest} questions." if rest else "")
    ).strip()


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return statistics.fmean(defined) if defined else None


def figure(points: Sequence[CurvePoint]) -> str:
    """Area by number of training questions: a line of means for each gate and label, a dot for each draw."""
    drawing, axes = new_figure(FILE_WIDTH, 4.4)
    lines = dict.fromkeys((p.gate, p.key) for p in points)
    looks = gate_looks(f"{gate}_{key}" for gate, key in lines)
    for gate, key in lines:
        dots = [(p.n, p.area) for p in points if (p.gate, p.key) == (gate, key) and p.area is not None]
        sizes = sorted({n for n, _ in dots})
        means = [statistics.fmean(area for n, area in dots if n == size) for size in sizes]
        colour, dash = looks[f"{gate}_{key}"]
        axes.plot(sizes, means, linestyle=dash, color=colour, label=f"{gate.replace('_', ' ')}, {key}")
        axes.plot([n for n, _ in dots], [area for _, area in dots], ".", color=colour, markersize=4)
    axes.axhline(0, color=COLOURS["grey"], linewidth=1)
    axes.set_xscale("log")
    ticks = sorted({p.n for p in points})
    gap = 0.08 * math.log(ticks[-1] / ticks[0]) if ticks else 0.0  # nearer labels would overprint the next one
    near = {n for n, after in pairwise(ticks) if math.log(after / n) < gap}
    axes.set_xticks(ticks, ["" if n in near else f"{n:,}" for n in ticks])
    axes.minorticks_off()
    axes.set_xlabel("labelled training questions")
    axes.set_ylabel("area (random 0, oracle 1)")
    legend_above(axes, len({key for _, key in lines}))
    return page(drawing)
