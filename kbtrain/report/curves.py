"""Accuracy against searches: gates' curves, each named at its end, and the curve beside which a page has a slider.

Also the need of a search by a gate's score, and learning curves.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from kbtrain.arrays import Floats
from kbtrain.evaluation.learning_curve import CurvePoint
from kbtrain.evaluation.outcomes import AccuracyKind, answers
from kbtrain.evaluation.results import GateResult, Results
from kbtrain.evaluation.savings import Saving, band
from kbtrain.gate.card import Saves
from kbtrain.metrics.calibration import equal_count_bins
from kbtrain.metrics.significance import wilson
from kbtrain.records import Outcome, Target
from kbtrain.report.tables import Column, Table, Value
from kbtrain.report.words import gate_name, percent
from kbtrain.show import COLOURS, FILE_WIDTH, legend_above, new_figure, page, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Dash = str | tuple[int, tuple[int, int]]
KINDS = 4  # curves of gates in the figure of few, each of another kind
_ENDS = ("llm_only", "all_rag")  # the two points that all curves share
_NEAR_THE_END = 94  # percent of the questions, where a curve is named: at 100 all of them meet
_SIZE, _LINE = 8, 1.3  # of a name: points, and height of a line of text in its size
_WORDS = 13  # characters of a line of a name


@dataclass(frozen=True)
class Band:
    """95 % interval of the first gate's accuracy (shares) at each of ``ratio``."""

    ratio: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class LineLabel:
    """A name at the right: the point it belongs to (percent) and the colour of the line that leads there."""

    text: str
    x: float
    y: float
    colour: str
    bold: bool = False


@dataclass(frozen=True)
class Level:
    """A line across the plot, and its name beside it; both in percent of the plot's height, from the top."""

    name: str
    top: float
    name_top: float


@dataclass(frozen=True)
class SlidingCurve:
    """A gate's curve for a page's slider, at each percent of searches.

    ``right``: answers right, percent; ``money``: of a thousand questions, None without tokens; ``tops``: heights in the
    plot, in percent from its top; ``line`` and ``band``: corners for an SVG of 100 by 100. At the threshold:
    ``searches`` of ``n`` (passages, where it ``saves`` these), ``accuracy`` in percent, what is ``paid``, and its dot.
    """

    n: int
    searches: int
    saves: Saves
    accuracy: float
    paid: float | None
    dot: tuple[float, float]
    right: list[float]
    money: list[float] | None
    currency: str
    tops: list[float]
    line: str
    band: str
    levels: list[Level]


def sliding_curve(
    gate: GateResult,
    saving: Saving,
    shaded: Band,
    levels: Mapping[str, float],
    money: list[float] | None,
    currency: str,
) -> SlidingCurve:
    """``levels``: accuracies by name."""
    ratios, at = np.linspace(0, 1, 101), 1 - saving.noted.saved.mean
    right = np.interp(ratios, gate.curve.ratio, gate.curve.accuracy)
    low, high = (np.interp(ratios, shaded.ratio, edge) for edge in (shaded.low, shaded.high))
    bottom, top = min(low.min(), *levels.values()), max(high.max(), *levels.values())

    def heights(values: Floats) -> list[float]:
        return [round(float(95 - 90 * (value - bottom) / max(top - bottom, 1e-9)), 2) for value in values]

    def corners(values: Floats) -> list[str]:
        return [f"{x},{y}" for x, y in enumerate(heights(values))]

    names = sorted(levels, key=lambda name: -levels[name])
    shown = [f"{name} {percent(levels[name])} %" for name in names]
    places = heights(np.array([levels[name] for name in names]))
    apart = spread(np.array(places), np.full(len(names), 9.0), 0, 100)
    (dot,) = heights(np.array([saving.noted.accuracy]))
    return SlidingCurve(
        n=gate.n, searches=round(gate.n * at), saves=saving.saves, accuracy=round(100 * saving.noted.accuracy, 1),
        paid=None if money is None else float(np.interp(at, ratios, money)), dot=(round(100 * at, 2), dot),
        right=[round(100 * float(x), 1) for x in right], money=money, currency=currency, tops=heights(right),
        line=" ".join(corners(right)), band=" ".join([*corners(high), *reversed(corners(low))]),
        levels=[Level(*one) for one in zip(shown, places, apart.tolist(), strict=True)],
    )  # fmt: skip


def curve_band(
    gate: GateResult,
    outcomes: Sequence[Outcome],
    scores: Mapping[str, float],
    kind: AccuracyKind,
    clusters: tuple[str, ...] | None = None,
) -> Band:
    """The band of a gate's curve, from the graded questions, or from whole ``clusters`` of them."""
    values = np.array([scores[o.question_id] for o in outcomes])
    low, high = band(values, replace(answers(outcomes, kind), clusters=clusters), np.asarray(gate.curve.ratio))
    return Band(gate.curve.ratio, low.tolist(), high.tolist())


def looks(names: Sequence[str]) -> dict[str, tuple[str, Dash]]:
    references: dict[str, tuple[str, Dash]] = {"random": (COLOURS["grey"], "--"), "oracle": (COLOURS["ink"], ":")}
    return gate_looks(name for name in names if name not in references and name not in _ENDS) | references


def leaders(savings: Sequence[Saving], first: str | None) -> list[str]:
    """``first``, and the best on dev of each other kind of gate (probe, KBM, ...), :data:`KINDS` at most."""
    kinds = {} if first is None else {first.split("_")[0]: first}
    for saving in savings:
        kinds.setdefault(saving.gate.split("_")[0], saving.gate)
    return list(kinds.values())[:KINDS]


def savings_figure(
    results: Results, savings: Sequence[Saving], first: str | None, shaded: Band | None, name: str = ""
) -> str:
    """Accuracy against searches, in the size that is legible on every screen: of all gates for a page (``name``: of its
    ids), or of :func:`leaders` as its own file.

    ``first`` is drawn with its band and the dot of its threshold from dev.
    """
    by_gate = {saving.gate: saving for saving in savings}
    named = {gate.gate: gate for gate in results.gates}
    gates = [*by_gate] if name else leaders(savings, first)
    drawn = [named[gate] for gate in (*gates, "random", "oracle") if gate in named]
    look = looks([*([first] if first else []), *leaders(savings, first), *by_gate])
    height = max(5.0, 1.0 + 1.6 * (len(drawn) + 3) * _LINE * _SIZE / 72)
    figure, axes = new_figure(FILE_WIDTH, height)
    ends = []
    if shaded is not None and first in look:
        x, low, high = ([100 * v for v in values] for values in (shaded.ratio, shaded.low, shaded.high))
        axes.fill_between(x, low, high, color=look[first][0], alpha=0.18, linewidth=0)
        edge = float(np.interp(_NEAR_THE_END, x, low))
        ends.append(LineLabel("95 % interval", _NEAR_THE_END, edge, look[first][0]))
    for gate in drawn:
        strength: dict[str, Any] = {"linewidth": 2.8, "zorder": 3} if gate.gate == first else {"linewidth": 1.5}
        colour, style = look[gate.gate]
        x, y = [100 * r for r in gate.curve.ratio], [100 * a for a in gate.curve.accuracy]
        axes.plot(x, y, linestyle=style, color=colour, **strength)
        text = "oracle" if gate.gate == "oracle" else gate_name(gate.gate)
        ends.append(
            LineLabel(text, _NEAR_THE_END, float(np.interp(_NEAR_THE_END, x, y)), colour, bold=gate.gate == first)
        )
    if first in by_gate:
        setting = by_gate[first].noted
        x, y = [100 * (1 - setting.saved.mean)], [100 * setting.accuracy]
        axes.plot(x, y, "o", color=look[first][0], markersize=8, zorder=4)
    for text, way in (("never", "llm_only"), ("always", "all_rag")):
        level = 100 * named[way].accuracy
        axes.axhline(level, color=COLOURS["grey"], linewidth=0.9)
        ends.append(LineLabel(f"{text} {percent(level / 100)} %", 100, level, COLOURS["grey"]))
    name_ends(axes, ends)
    return render(figure, name) if name else page(figure)


def name_ends(axes: Axes, labels: Sequence[LineLabel]) -> None:
    """Each name at the right of the axes, a thin line leading to its curve; none overlaps another one.

    They are in the order of the curves, as near to them as their heights allow.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    low, high = axes.get_ylim()
    line = _LINE * _SIZE / 72 / (figure.get_size_inches()[1] - 1.0) * (high - low)  # the axis's own labels take an inch
    ordered = sorted(labels, key=lambda label: label.y)
    texts = ["\n".join(textwrap.wrap(label.text, _WORDS)) for label in ordered]
    heights = line * np.array([1 + text.count("\n") for text in texts], dtype=np.float64)
    places = spread(np.array([label.y for label in ordered], dtype=np.float64), heights, low, high)
    for label, text, place in zip(ordered, texts, places, strict=True):
        axes.plot([label.x, 101.5, 103], [label.y, place, place], color=label.colour, linewidth=0.9, clip_on=False)
        axes.text(104, place, text, fontsize=_SIZE, color=COLOURS["ink"], verticalalignment="center", linespacing=1.1,
                  fontweight="bold" if label.bold else "normal")  # fmt: skip
    axes.set_ylim(low, high)
    axes.set_xlim(0, 100)
    axes.set_xlabel("searches (% of the questions)")
    axes.set_ylabel("questions answered right (%)")


def spread(places: Floats, heights: Floats, low: float, high: float) -> Floats:
    """Middles of boxes of such heights that do not overlap, as near as can be (least squares) to rising ``places``.

    They lie within ``low`` and ``high`` where these leave room for all of them.
    """
    from scipy.optimize import isotonic_regression

    offsets = np.concatenate([[0.0], np.cumsum((heights[1:] + heights[:-1]) / 2)])
    first: Floats = isotonic_regression(places - offsets).x
    lowest, highest = low + heights[0] / 2, high - heights[-1] / 2 - offsets[-1]
    return np.asarray(np.clip(first, lowest, max(lowest, highest)) + offsets)


# Okabe and Ito's first, then always the colour farthest in Oklab from all before it; each has a contrast of 2.5 or more
# to white and to the page's dark ground, for which the page has own shades of the first five.
PALETTE = (
    *(COLOURS[name] for name in ("blue", "red", "green", "purple", "orange")),
    *("#9900ff", "#aa0077", "#ff22ff", "#116611", "#11aaff", "#1133ff", "#775555", "#ff0066", "#9977ff", "#bb0011"),
    *("#00bb00", "#7744aa", "#887700", "#cc33bb", "#3377ff"),
)
_KINDS = ("stack", "draft_probe", "probe", "features", "kbm", "encoder_probe")  # the gates of most figures
_DASHES: dict[str, Dash] = {"benefit": "-", "mastery": "--", "certainty": "-."}


def gate_looks(gates: Iterable[str]) -> dict[str, tuple[str, Dash]]:
    """Colour and dash of each gate: the colour is the kind's, in every figure, and the dash the label's.

    Behind as many kinds as :data:`PALETTE` has colours these begin again.
    """
    parts = {}
    for gate in gates:
        kind, _, key = gate.rpartition("_")
        parts[gate] = (kind, key) if kind and key in get_args(Target) else (gate, "")
    kinds = [*_KINDS, *dict.fromkeys(kind for kind, _ in parts.values() if kind not in _KINDS)]
    colours = {kind: PALETTE[i % len(PALETTE)] for i, kind in enumerate(kinds)}
    return {gate: (colours[kind], _DASHES.get(key, "-")) for gate, (kind, key) in parts.items()}


def score_bins(scores: Sequence[float], needed: Sequence[bool], threshold: float) -> str:
    """Share of questions that need retrieval in bins of equally many questions by score, with Wilson's intervals.

    Below each bin its lowest and highest score and its n; a line marks the threshold. Equal scores stay in one bin.
    """
    values, truth = np.asarray(scores), np.asarray(needed, dtype=bool)
    groups = equal_count_bins(values, 10)
    figure, axes = new_figure(5.4, 3.4)
    for i, inside in enumerate(groups):
        share, n = float(truth[inside].mean()), len(inside)
        low, high = wilson(int(truth[inside].sum()), n)
        searched = float((values[inside] > threshold).mean()) > 0.5
        axes.bar([i], [100 * share], width=0.8, color=COLOURS["blue" if searched else "orange"])
        axes.plot([i, i], [100 * low, 100 * high], color=COLOURS["ink"], linewidth=1)
    axes.axhline(100 * float(truth.mean()), color=COLOURS["grey"], linewidth=1, linestyle="--")
    names = [f"{values[i].min():.3g}\n{values[i].max():.3g}\nn={len(i)}" for i in groups]
    axes.set_xticks(range(len(groups)), names, fontsize=7)
    axes.set_xlabel("score: lowest, highest and number of questions of each bin")
    axes.set_ylabel("search needed (%)")
    return render(figure, "scores")


def learning_table(points: Sequence[CurvePoint], n_test: int) -> Table:
    """One row for each gate, key and size: means over the draws, the area with its 95 % interval (Student's t)."""
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
        "Best, corrected: area in the draws in which the gate is the best, corrected for that choice."
    )
    return Table("learning_curve", "Learning curves", note, columns, rows)


def interval_of_draws(values: Sequence[float]) -> tuple[float | None, float | None]:
    """95 % interval of a mean over draws, by Student's t; None for fewer than two."""
    if len(values) < 2:
        return None, None
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return statistics.fmean(defined) if defined else None


def learning_figure(points: Sequence[CurvePoint]) -> str:
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
