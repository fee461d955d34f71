"""Table and figure of learning curves."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from kbtrain.evaluation.learning_curve import Point
from kbtrain.report.tables import Column, Table
from kbtrain.svg import COLOURS, new_figure, page


def layout(points: Sequence[Point], n_test: int) -> Table:
    """One row for each gate, key and size: means over the draws, and the least and greatest area."""
    columns = [Column("gate", "text"), Column("label", "text"), Column("questions", "count"), Column("draws", "count"),
               Column("area", "decimal"), Column("least", "decimal"), Column("greatest", "decimal"),
               Column("AUROC wrong", "decimal"), Column("AUROC needed", "decimal")]  # fmt: skip
    groups = dict.fromkeys((point.gate, point.key, point.n) for point in sorted(points, key=lambda p: (p.gate, p.key)))
    rows = []
    for gate, key, n in groups:
        part = [point for point in points if (point.gate, point.key, point.n) == (gate, key, n)]
        areas = [point.area for point in part if point.area is not None]
        ends = [min(areas), max(areas)] if areas else [None, None]
        wrong, needed = [p.auroc_wrong for p in part], [p.auroc_needed for p in part]
        rows.append([gate, key, n, len(part), _mean(areas), *ends, _mean(wrong), _mean(needed)])
    note = (
        f"Means over draws of training questions, on {n_test} test questions; area: random order 0, oracle's order 1."
    )
    return Table("learning_curve", "Learning curves", note, columns, rows)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def figure(points: Sequence[Point]) -> str:
    """Area by number of training questions: a line of means for each gate and label, a dot for each draw."""
    made, axes = new_figure(8.0, 3.6)
    names = [name for name in COLOURS if name not in ("ink", "grid", "grey")]
    dashes = {key: style for key, style in zip(dict.fromkeys(p.key for p in points), ("-", "--", ":"), strict=False)}
    colours = dict(zip(dict.fromkeys(p.gate for p in points), names, strict=False))
    for gate, key in dict.fromkeys((p.gate, p.key) for p in points):
        found = [(p.n, p.area) for p in points if (p.gate, p.key) == (gate, key) and p.area is not None]
        sizes = sorted({n for n, _ in found})
        means = [statistics.fmean(area for n, area in found if n == size) for size in sizes]
        colour = COLOURS[colours[gate]]
        axes.plot(sizes, means, dashes[key], color=colour, label=f"{gate.replace('_', ' ')}, {key}")
        axes.plot([n for n, _ in found], [area for _, area in found], ".", color=colour, markersize=4)
    axes.axhline(0, color=COLOURS["grey"], linewidth=1)
    axes.set_xscale("log")
    ticks = sorted({p.n for p in points})
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes.minorticks_off()
    axes.set_xlabel("labelled training questions")
    axes.set_ylabel("area (random 0, oracle 1)")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8, frameon=False)  # beside: curves are everywhere
    return page(made)
