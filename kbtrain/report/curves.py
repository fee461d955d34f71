"""Accuracy against searches: each gate's curve, named at its end; colours of lines for any number of gates.

The first figure of a report shows few curves (the gate best on dev with its band, the best of the other kinds, random
and the oracle), the folded one all of them.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from kbtrain.arrays import Floats
from kbtrain.evaluation.outcomes import AccuracyKind, answers
from kbtrain.evaluation.results import GateResult, Results
from kbtrain.evaluation.savings import Saving, band
from kbtrain.records import Outcome, Target
from kbtrain.report.words import gate_name, percent, points
from kbtrain.show import COLOURS, new_figure, page, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Dash = str | tuple[int, tuple[int, int]]
KINDS = 4  # curves of gates in the first figure, each of another kind
_ENDS = ("llm_only", "all_rag")  # the two points that all curves share
_NEAR_THE_END = 94  # percent of the questions, where a curve is named: at 100 all of them meet
_LINE = 1.3  # height of a line of text, in its size
_NARROW_WORDS = 13  # characters of a line of a name on a phone


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
    """Colour and dash of each curve by name: no two gates have both in common, however many there are."""
    references: dict[str, tuple[str, Dash]] = {"random": (COLOURS["grey"], "--"), "oracle": (COLOURS["ink"], ":")}
    return gate_looks(name for name in names if name not in references and name not in _ENDS) | references


def leaders(savings: Sequence[Saving], first: str | None) -> list[str]:
    """``first``, and the best on dev of each other kind of gate (probe, KBM, ...), :data:`KINDS` at most."""
    kinds = {} if first is None else {first.split("_")[0]: first}
    for saving in savings:
        kinds.setdefault(saving.gate.split("_")[0], saving.gate)
    return list(kinds.values())[:KINDS]


def savings_figure(
    results: Results, savings: Sequence[Saving], first: str | None, shaded: Band | None, name: str, whole: bool = False
) -> str:
    """Accuracy against searches over the page's width, ``name`` ending in ``narrow`` for a phone.

    ``first`` is drawn with its band, the dot of its threshold from dev with what it saves there, and a ring where it
    meets All-RAG minus the limit; ``whole``: all gates, else :func:`leaders`. Without a ``name``: a file of its own, in
    the size that is legible on every screen.
    """
    figure = _savings(results, savings, first, shaded, not name or name.endswith("narrow"), whole)
    return render(figure, name) if name else page(figure)


def _savings(
    results: Results, savings: Sequence[Saving], first: str | None, shaded: Band | None, narrow: bool, whole: bool
) -> Figure:
    by_gate = {saving.gate: saving for saving in savings}
    named = {gate.gate: gate for gate in results.gates}
    gates = [saving.gate for saving in savings] if whole else leaders(savings, first)
    drawn = [named[gate] for gate in (*gates, "random", "oracle") if gate in named]
    look = looks([*([first] if first else []), *leaders(savings, first), *by_gate])
    size, n = (8 if narrow else 9.5), len(drawn) + 4
    width, height = (4.6, _height(5.0, n * (1 + narrow * 0.6), size)) if narrow else (11.2, _height(4.9, n, size))
    figure, axes = new_figure(width, height)
    shade: list[LineLabel] = []
    if shaded is not None and first in look:
        x, low, high = ([100 * v for v in values] for values in (shaded.ratio, shaded.low, shaded.high))
        axes.fill_between(x, low, high, color=look[first][0], alpha=0.18, linewidth=0)
        edge = float(np.interp(_NEAR_THE_END, x, low))
        shade = [LineLabel("95 % interval", _NEAR_THE_END, edge, look[first][0])]
    for gate in drawn:
        strength = {"linewidth": 2.8, "zorder": 3} if gate.gate == first else {"linewidth": 1.5}
        _draw(axes, gate, look, **strength)
    axes.set_xlim(0, 100)
    if first in by_gate:
        saving = by_gate[first]
        meets = 100 * (named["all_rag"].accuracy - saving.limit)
        axes.plot([100 * saving.within], [meets], "o", markerfacecolor="none", color=COLOURS["ink"], markersize=11)
        left = saving.within > 0.7
        axes.annotate(  # below the ring: the curve rises there
            f"{100 * saving.limit:.0f} points below always", (100 * saving.within, meets), (-9 if left else 9, -13),
            textcoords="offset points", fontsize=size - 1, color=COLOURS["ink"], zorder=5,
            horizontalalignment="right" if left else "left", verticalalignment="center",
            bbox={"facecolor": COLOURS["paper"], "edgecolor": "none", "alpha": 0.8, "boxstyle": "round,pad=0.15"},
        )  # fmt: skip
        annotate(axes, saving, look[saving.gate][0], narrow)
    ends = [_end(gate, look, bold=gate.gate == first) for gate in drawn]
    levels = _levels(axes, named, by_gate[first].limit if first in by_gate else None, narrow)
    name_ends(axes, [*ends, *levels, *shade], size, _NARROW_WORDS if narrow else None)
    return figure


def _height(least: float, labels: float, size: float) -> float:
    """Height of a figure (inches) in which the lines of text fit one above the other beside the curves."""
    return max(least, 1.0 + labels * _LINE * size / 72)


def _draw(axes: Axes, gate: GateResult, look: Mapping[str, tuple[str, Dash]], **more: Any) -> None:
    colour, style = look[gate.gate]
    x, y = [100 * r for r in gate.curve.ratio], [100 * a for a in gate.curve.accuracy]
    axes.plot(x, y, linestyle=style, color=colour, **more)


def _end(gate: GateResult, look: Mapping[str, tuple[str, Dash]], bold: bool = False) -> LineLabel:
    height = float(np.interp(_NEAR_THE_END / 100, gate.curve.ratio, gate.curve.accuracy))
    name = "oracle" if gate.gate == "oracle" else gate_name(gate.gate)
    return LineLabel(name, _NEAR_THE_END, 100 * height, look[gate.gate][0], bold)


def annotate(axes: Axes, saving: Saving, colour: str, narrow: bool) -> None:
    """The dot of a gate's threshold, and in words what is saved there: above, or below where 100 % leaves no room."""
    setting = saving.noted
    x, y = 100 * (1 - setting.saved.mean), 100 * setting.accuracy
    axes.plot([x], [y], "o", color=colour, markersize=8, zorder=4)
    low, high = axes.get_ylim()
    room = 0.27 * (high - low)
    place = y + 0.63 * room if y + room <= 100 else y - 0.8 * room
    axes.set_ylim(min(low, place - 0.4 * room), max(high, place + 0.4 * room if place > y else high))
    aside = min(max(x if place > y else x + 18.0, 22.0), 78.0)  # below a rising curve there is room at its right
    saved = f"skips {percent(setting.saved.mean)} % of the {saving.saves}"
    text = f"{gate_name(saving.gate)}\n{saved}\n{points(setting.change.mean)} points"
    axes.annotate(
        text, (x, y), (aside, place), fontsize=8 if narrow else 9.5, color=COLOURS["ink"], zorder=5, linespacing=1.35,
        horizontalalignment="center", verticalalignment="center",
        arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 1.2, "shrinkB": 5},
        bbox={"facecolor": COLOURS["paper"], "edgecolor": colour, "linewidth": 0.8, "boxstyle": "round,pad=0.5"},
    )  # fmt: skip


def _levels(axes: Axes, named: Mapping[str, GateResult], limit: float | None, narrow: bool) -> list[LineLabel]:
    """Level lines of never, always, and always minus the limit, with their names."""
    always, never = 100 * named["all_rag"].accuracy, 100 * named["llm_only"].accuracy
    lines = [("never", never, "-"), ("always", always, "-")]
    lines += [] if limit is None else [(f"\N{MINUS SIGN}{100 * limit:.0f} points", always - 100 * limit, ":")]
    labels = []
    for text, level, style in lines:
        axes.axhline(level, color=COLOURS["grey"], linewidth=0.9, linestyle=style)
        label = text if narrow or style == ":" else f"{text} {level:.1f} %"
        labels.append(LineLabel(label, 100, level, COLOURS["grey"]))
    return labels


def name_ends(axes: Axes, labels: Sequence[LineLabel], size: float, wrap: int | None = None) -> None:
    """Each name at the right of the axes, a thin line leading to its curve; none overlaps another one.

    They stand in the order of the curves, as near to them as their heights allow. ``wrap``: characters of a line.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    low, high = axes.get_ylim()
    line = _LINE * size / 72 / (figure.get_size_inches()[1] - 1.0) * (high - low)  # the axis's own labels take an inch
    ordered = sorted(labels, key=lambda label: label.y)
    texts = ["\n".join(textwrap.wrap(label.text, wrap)) if wrap else label.text for label in ordered]
    heights = line * np.array([1 + text.count("\n") for text in texts], dtype=np.float64)
    places = spread(np.array([label.y for label in ordered], dtype=np.float64), heights, low, high)
    for label, text, place in zip(ordered, texts, places, strict=True):
        axes.plot([label.x, 101.5, 103], [label.y, place, place], color=label.colour, linewidth=0.9, clip_on=False)
        axes.text(104, place, text, fontsize=size, color=COLOURS["ink"], verticalalignment="center", linespacing=1.1,
                  fontweight="bold" if label.bold else "normal")  # fmt: skip
    axes.set_ylim(low, high)
    axes.set_xlim(0, 100)
    axes.set_xlabel("questions searched for (%)")
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


FIRST = tuple(COLOURS[name] for name in ("blue", "red", "green", "purple", "orange"))
GROUNDS = ("#ffffff", "#16171a")  # of style.css
CONTRAST = 2.5  # at least, to both grounds; the page has own shades of the first five for each
_STEP = 17  # 16 steps a channel
_KINDS = ("stack", "draft_probe", "probe", "features", "kbm", "encoder_probe")  # the gates of most figures
_DASHES: dict[str, Dash] = {"benefit": "-", "mastery": "--", "certainty": "-."}


def gate_looks(gates: Iterable[str]) -> dict[str, tuple[str, Dash]]:
    """Colour and dash of each gate: the colour is the kind's, in every figure, and the dash the label's."""
    parts = {}
    for gate in gates:
        kind, _, key = gate.rpartition("_")
        parts[gate] = (kind, key) if kind and key in get_args(Target) else (gate, "")
    kinds = [*_KINDS, *dict.fromkeys(kind for kind, _ in parts.values() if kind not in _KINDS)]
    colours = dict(zip(kinds, distinct(len(kinds)), strict=True))
    return {gate: (colours[kind], _DASHES.get(key, "-")) for gate, (kind, key) in parts.items()}


@functools.cache
def distinct(n: int) -> tuple[str, ...]:
    """``n`` colours: :data:`FIRST`, then always the one farthest in Oklab from grey and from all before it."""
    values = range(0, 256, _STEP)
    rgb = np.array(list(product(values, values, values)), dtype=np.float64) / 255
    rgb = rgb[np.all([contrast(rgb, rgb_of(ground)) >= CONTRAST for ground in GROUNDS], axis=0)]
    lab = oklab(rgb)
    colours = list(FIRST)
    used = [oklab(rgb_of(colour)) for colour in (*colours, COLOURS["grey"], COLOURS["ink"])]
    nearest = np.min([np.linalg.norm(lab - colour, axis=1) for colour in used], axis=0)
    while len(colours) < n:
        place = int(np.argmax(nearest))
        colours.append("#" + "".join(f"{round(255 * v):02x}" for v in rgb[place]))
        nearest = np.minimum(nearest, np.linalg.norm(lab - lab[place], axis=1))
    return tuple(colours[:n])


def oklab(rgb: Floats) -> Floats:
    """Ottosson's Oklab (2020) of sRGB colours in [0, 1], shape (..., 3)."""
    to_cones = np.array([[0.4122214708, 0.5363325363, 0.0514459929],
                         [0.2119034982, 0.6806995451, 0.1073969566],
                         [0.0883024619, 0.2817188376, 0.6299787005]])  # fmt: skip
    to_lab = np.array([[0.2104542553, 0.7936177850, -0.0040720468],
                       [1.9779984951, -2.4285922050, 0.4505937099],
                       [0.0259040371, 0.7827717662, -0.8086757660]])  # fmt: skip
    lab: Floats = np.cbrt(_linear(rgb) @ to_cones.T) @ to_lab.T
    return lab


def contrast(colour: Floats, ground: Floats) -> Floats:
    """WCAG's contrast ratio of sRGB colours, 1 to 21."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    first, second = _linear(colour) @ weights + 0.05, _linear(ground) @ weights + 0.05
    return np.asarray(np.maximum(first, second) / np.minimum(first, second))


def rgb_of(colour: str) -> Floats:
    """``#ff0000`` as three numbers in [0, 1]."""
    return np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def _linear(rgb: Floats) -> Floats:
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
