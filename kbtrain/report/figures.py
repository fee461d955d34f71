"""Figures of the report and of a gate's own page, each as one inline SVG.

A gate's page shows the distribution of its scores over both kinds of questions, and their calibration.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from kbtrain.errors import UserError, at
from kbtrain.evaluation.outcomes import AccuracyKind, answers
from kbtrain.evaluation.results import GateResult, Results
from kbtrain.evaluation.savings import Saving, band
from kbtrain.jsonl import read_value
from kbtrain.labeling.distribution import BINS, EFFECTS, INTERVALS, Indicator, LabelStatistics
from kbtrain.metrics.calibration import Calibrated, Calibration
from kbtrain.metrics.significance import wilson
from kbtrain.records import CONDITIONS, Condition, Effect, Outcome
from kbtrain.report.words import gate_name, percent, points
from kbtrain.svg import COLOURS, new_figure, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Dash = Literal["-", "--", "-.", ":"]
_LINES: dict[str, tuple[str, Dash]] = {
    "kbm_benefit": ("blue", "-"),
    "kbm_mastery": ("orange", "-"),
    "kbm_certainty": ("green", "-"),
    "relation_only": ("red", "--"),
    "prompt": ("purple", "-."),
    "oracle": ("ink", ":"),
    "random": ("grey", "--"),
}
_HUES = ("sky", "red", "purple", "blue", "orange", "green")
_STANDING_BACK: dict[str, Any] = {"linewidth": 1.2, "alpha": 0.6}
_IN_THE_CORNER = 9  # more lines than these are named below the curves, not over them
_STYLES: tuple[Dash, ...] = ("-", "--", "-.", ":")  # a second mark beside the colour
EFFECT_COLOURS = dict(zip(EFFECTS, ("blue", "grey", "red"), strict=True))
_CONDITION_STYLES: dict[Condition, tuple[str, str]] = {
    "llm": ("blue", "-"),
    "rag": ("red", "--"),
    "mask": ("grey", ":"),
}
NAMES: dict[Condition, str] = {"llm": "LLM only", "rag": "All RAG", "mask": "MASK RAG"}


def looks(names: Iterable[str]) -> dict[str, tuple[str, Dash]]:
    """Colour and dash of each gate, no two alike up to 24 gates beside the known ones."""
    wanted = list(dict.fromkeys(names))
    found = {name: _LINES[name] for name in wanted if name in _LINES}
    free = [(hue, style) for style in _STYLES for hue in _HUES if (hue, style) not in found.values()]
    others = [name for name in wanted if name not in found]
    return found | {name: free[i % len(free)] for i, name in enumerate(others)}


def accuracy_curve(gates: Sequence[GateResult], name: str = "curve") -> str:
    """Accuracy against retrieval ratio for every gate with a curve; a dot marks the threshold in use."""
    shown = [gate for gate in gates if gate.gate not in ("llm_only", "all_rag")]  # the two ends that all curves share
    below = len(shown) > _IN_THE_CORNER
    figure, axes = new_figure(5.4, 3.9 + 0.19 * below * -(-len(shown) // 3))
    look = looks(gate.gate for gate in shown)
    for gate in shown:
        colour, style = look[gate.gate]
        x, y = [100 * r for r in gate.curve.ratio], [100 * a for a in gate.curve.accuracy]
        axes.plot(x, y, style, color=COLOURS[colour], linewidth=1.6, label=gate_name(gate.gate))
        if gate.gate != "random":
            axes.plot([100 * gate.retrieval_ratio], [100 * gate.accuracy], "o", color=COLOURS[colour], markersize=5)
    axes.set_xlabel("questions searched for (%)")
    axes.set_ylabel("questions answered right (%)")
    axes.set_xlim(0, 100)
    given: dict[str, Any] = {"fontsize": 8, "frameon": False, "labelcolor": COLOURS["ink"], "handlelength": 2.6}
    if below:
        figure.legend(loc="outside lower left", ncols=3, **given)
    else:
        axes.legend(loc="upper left", ncols=2, **given)
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.22 * (high - low))  # room for the legend
    return render(figure, name)


@dataclass(frozen=True)
class Band:
    """95 % interval of the first gate's accuracy (shares) at each of ``ratio``."""

    ratio: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


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


def savings_figure(results: Results, found: Sequence[Saving], first: str | None, shaded: Band | None, name: str) -> str:
    """Accuracy against searches over the page's width, ``name`` ending in ``narrow`` for a phone.

    ``first`` is drawn with its band, the dot of its threshold from dev with what it saves there, and a ring where it
    meets All-RAG minus the limit; the others stand back. Names stand at the right, in the order of the curves' height
    in the middle.
    """
    narrow = name.endswith("narrow")
    savings = {one.gate: one for one in found}
    figure, axes = new_figure(*((4.6, 5.2) if narrow else (11.2, 4.9)))
    named = {gate.gate: gate for gate in results.gates}
    shown = [gate for gate in results.gates if gate.gate in savings or gate.gate in ("oracle", "random")]
    look = looks(gate.gate for gate in shown)
    if shaded is not None and first in look:
        x, low, high = ([100 * v for v in values] for values in (shaded.ratio, shaded.low, shaded.high))
        axes.fill_between(x, low, high, color=COLOURS[look[first][0]], alpha=0.18, linewidth=0)
    for gate in shown:
        colour, style = look[gate.gate]
        x, y = [100 * r for r in gate.curve.ratio], [100 * a for a in gate.curve.accuracy]
        strength: dict[str, Any] = {"linewidth": 2.8, "zorder": 3} if gate.gate == first else _STANDING_BACK
        axes.plot(x, y, style, color=COLOURS[colour], **strength)
    axes.set_xlim(0, 100)
    if first in savings:
        one, colour = savings[first], COLOURS[look[first][0]]
        meets = 100 * (named["all_rag"].accuracy - one.limit)
        axes.plot([100 * one.within], [meets], "o", markerfacecolor="none", color=COLOURS["ink"], markersize=11)
        _told(axes, one, colour, narrow)
    _levels(axes, named, savings[first].limit if first in savings else None, narrow)
    axes.set_xlabel("questions searched for (%)")
    axes.set_ylabel("questions answered right (%)")
    _name_lines(axes, shown, look, first, narrow)
    return render(figure, name)


def _told(axes: Axes, one: Saving, colour: str, narrow: bool) -> None:
    """The dot of a gate's threshold, and in words what is saved there: above, or below where 100 % leaves no room."""
    x, y = 100 * (1 - one.saved.mean), 100 * one.accuracy
    axes.plot([x], [y], "o", color=colour, markersize=8, zorder=4)
    low, high = axes.get_ylim()
    room = 0.27 * (high - low)
    place = y + 0.63 * room if y + room <= 100 else y - 0.8 * room
    axes.set_ylim(min(low, place - 0.4 * room), max(high, place + 0.4 * room if place > y else high))
    aside = min(max(x if place > y else x + 18.0, 22.0), 78.0)  # below a rising curve there is room at its right
    text = f"{gate_name(one.gate)}\nsaves {percent(one.saved.mean)} % of the searches\n{points(one.change.mean)} points"
    axes.annotate(
        text, (x, y), (aside, place), fontsize=8 if narrow else 9.5, color=COLOURS["ink"], zorder=5, linespacing=1.35,
        horizontalalignment="center", verticalalignment="center",
        arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 1.2, "shrinkB": 5},
        bbox={"facecolor": COLOURS["paper"], "edgecolor": colour, "linewidth": 0.8, "boxstyle": "round,pad=0.5"},
    )  # fmt: skip


def _levels(axes: Axes, named: Mapping[str, GateResult], limit: float | None, narrow: bool) -> None:
    """Level lines of never, always, and always minus the limit, named beside their right ends, where nothing is."""
    always, never = 100 * named["all_rag"].accuracy, 100 * named["llm_only"].accuracy
    lines = [("never", never, "-"), ("always", always, "-")]
    lines += [] if limit is None else [(f"\N{MINUS SIGN}{100 * limit:.0f} points", always - 100 * limit, ":")]
    low, high = axes.get_ylim()
    place = -np.inf
    for text, level, style in sorted(lines, key=lambda line: line[1]):
        axes.axhline(level, color=COLOURS["grey"], linewidth=0.9, linestyle=style)
        place = max(level, place + (0.032 if narrow else 0.04) * (high - low))  # two levels may lie close together
        shown = text if narrow or style == ":" else f"{text} {level:.1f} %"
        axes.text(101, place, shown, fontsize=8 if narrow else 9, color=COLOURS["ink"], verticalalignment="center")


def _name_lines(
    axes: Axes, shown: Sequence[GateResult], look: Mapping[str, tuple[str, Dash]], first: str | None, narrow: bool
) -> None:
    """Each curve's name beside the right end (below on a phone), with a piece of its line."""
    from matplotlib.lines import Line2D

    ordered = sorted(shown, key=lambda gate: -gate.curve.accuracy[len(gate.curve.accuracy) // 2])
    handles = [
        Line2D([], [], color=COLOURS[look[gate.gate][0]], linestyle=look[gate.gate][1],
               linewidth=2.8 if gate.gate == first else 1.4, label=gate_name(gate.gate))
        for gate in ordered
    ]  # fmt: skip
    given: dict[str, Any] = {"frameon": False, "labelcolor": COLOURS["ink"], "handlelength": 2.2, "fontsize": 9}
    figure = axes.get_figure(root=True)
    assert figure is not None
    if narrow:
        figure.legend(handles=handles, loc="outside lower left", ncols=2, **given)
    else:
        figure.legend(handles=handles, loc="outside right center", labelspacing=0.9, **given)


def histogram(statistics: LabelStatistics, indicator: Indicator) -> str:
    """Distribution of an indicator over the questions, one line per condition, with tau."""
    figure, axes = new_figure(4.2, 2.9)
    edges = [i / BINS for i in range(BINS + 1)]
    for condition in CONDITIONS:
        counts = [statistics.histograms[indicator, condition, i] for i in range(BINS)]
        if not sum(counts):
            continue
        shares = [100 * count / sum(counts) for count in counts]
        colour, style = _CONDITION_STYLES[condition]
        axes.stairs(shares, edges, color=COLOURS[colour], linestyle=style, linewidth=1.6, label=NAMES[condition])
    tau = statistics.tau_mastery if indicator == "mastery" else statistics.tau_certainty
    axes.axvline(tau, color=COLOURS["ink"], linewidth=1, label=f"tau = {tau:.3g}")
    axes.set_xlim(0, 1)
    axes.set_xlabel(f"{indicator} (0 to 1)")
    axes.set_ylabel("questions (%)")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.3 * (high - low))  # room for the legend
    axes.legend(loc="upper center", ncols=2, fontsize=8, frameon=False, labelcolor=COLOURS["ink"])
    return render(figure, f"histogram-{indicator}")


def panel(statistics: LabelStatistics, indicator: Indicator, condition: Condition) -> str | None:
    """One panel of KBM's figure 3: the effects of retrieval over the intervals of an indicator; None without data.

    The panels of an indicator share their scale; the page explains the colours once for all.
    """
    shares = {c: _shares(statistics, indicator, c) for c in CONDITIONS}
    if not any(map(sum, shares[condition].values())):
        return None
    figure, axes = new_figure(3.3, 2.4)
    bottom = [0.0] * INTERVALS
    for effect, heights in shares[condition].items():
        axes.bar(range(INTERVALS), heights, bottom=bottom, color=COLOURS[EFFECT_COLOURS[effect]], width=0.8)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    steps = [i / INTERVALS for i in range(INTERVALS + 1)]
    axes.set_xticks(range(INTERVALS), [f"{a:g}-{b:g}" for a, b in pairwise(steps)], fontsize=8)
    axes.set_ylim(0, 1.05 * max(max(map(sum, zip(*c.values(), strict=True))) for c in shares.values()))
    axes.set_xlabel("accuracy (mastery)" if indicator == "mastery" else "certainty")
    axes.set_ylabel("questions (%)")
    axes.set_title(NAMES[condition], fontsize=10, color=COLOURS["ink"])
    return render(figure, f"panel-{indicator}-{condition}")


def _shares(statistics: LabelStatistics, indicator: Indicator, condition: Condition) -> dict[Effect, list[float]]:
    """Percent of the questions by effect and interval."""
    counts = {e: [statistics.panels[indicator, condition, i, e] for i in range(INTERVALS)] for e in EFFECTS}
    total = sum(map(sum, counts.values())) or 1
    return {effect: [100 * count / total for count in row] for effect, row in counts.items()}


POSITIVE = "needed"  # the definition whose calibration is drawn
_BINS = 10


def read_calibration(path: Path) -> dict[str, Calibrated]:
    """Each gate's calibration for :data:`POSITIVE` from classify.json; empty if that was not made.

    Raises :class:`UserError` for a file that cannot be read.
    """
    if not os.path.lexists(path):
        return {}
    try:
        document = read_value(path)
        gates = {gate["gate"]: gate.get("calibration", {}) for gate in document["gates"]}
        adapter = TypeAdapter(Calibrated)
        return {name: adapter.validate_python(by[POSITIVE]) for name, by in gates.items() if POSITIVE in by}
    except (AttributeError, KeyError, TypeError, ValidationError):
        raise UserError(f"{at(path)}: not a classification table of this version; run eval/classify.py again") from None


def gate_figures(
    gate: GateResult, outcomes: Sequence[Outcome], scores: Mapping[str, float], made: Mapping[str, Calibrated]
) -> dict[str, str]:
    """The SVGs of a gate's page by name; ``reliability`` only if its scores are probabilities."""
    values = [scores[o.question_id] for o in outcomes]
    cut = gate.threshold if gate.threshold is not None else 0.0
    needed = [o.rag_correct and not o.llm_correct for o in outcomes]
    found = {"scores": score_bins(values, needed, cut), "reliability": ""}
    own = made.get(gate.gate)
    named = (("as scored", own.raw), ("temperature", own.at_temperature), ("isotonic", own.isotonic)) if own else ()
    curves = [(name, one) for name, one in named if one is not None]
    if own is not None and own.raw is not None:
        found["reliability"] = reliability(curves)
    return found


def score_bins(scores: Sequence[float], needed: Sequence[bool], threshold: float) -> str:
    """Share of questions that need retrieval in bins of equally many questions by score, with Wilson's intervals.

    Below each bin its lowest and highest score and its n; the line separates what is searched for. Equal scores stay
    in one bin.
    """
    values, truth = np.asarray(scores), np.asarray(needed, dtype=bool)
    found = equal_count_bins(values, _BINS)
    figure, axes = new_figure(5.4, 3.4)
    for i, inside in enumerate(found):
        share, n = float(truth[inside].mean()), len(inside)
        low, high = wilson(int(truth[inside].sum()), n)
        searched = float((values[inside] > threshold).mean()) > 0.5
        colour = COLOURS["blue" if searched else "orange"]
        axes.bar([i], [100 * share], width=0.8, color=colour)
        axes.plot([i, i], [100 * low, 100 * high], color=COLOURS["ink"], linewidth=1)
    axes.axhline(100 * float(truth.mean()), color=COLOURS["grey"], linewidth=1, linestyle="--")
    names = [f"{values[i].min():.3g}\n{values[i].max():.3g}\nn={len(i)}" for i in found]
    axes.set_xticks(range(len(found)), names, fontsize=7)
    axes.set_xlabel("score: lowest, highest and number of questions of each bin")
    axes.set_ylabel("search needed (%)")
    return render(figure, "scores")


def equal_count_bins(values: NDArray[np.float64], bins: int) -> list[NDArray[np.intp]]:
    """Places of the values in at most ``bins`` groups of about equal size, by rising value; equal values together."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    edges = sorted({int(np.searchsorted(ordered, ordered[len(values) * i // bins])) for i in range(bins)} | {0})
    return [order[start:stop] for start, stop in pairwise([*edges, len(values)]) if stop > start]


def reliability(curves: Sequence[tuple[str, Calibration]]) -> str:
    """Reliability diagram: share of positives against mean probability in each bin; the diagonal is perfect."""
    figure, axes = new_figure(4.2, 3.6)
    axes.plot([0, 1], [0, 1], color=COLOURS["grey"], linewidth=1, linestyle=":", label="perfect")
    looks = (("blue", "-", "o"), ("orange", "--", "s"), ("green", "-.", "^"))
    for (name, found), (colour, style, marker) in zip(curves, looks, strict=False):
        x, y = [b.predicted for b in found.bins], [b.observed for b in found.bins]
        label = f"{name} (ECE {found.ece:.3f})"
        axes.plot(x, y, style, marker=marker, color=COLOURS[colour], linewidth=1.4, markersize=4, label=label)
        if found is curves[0][1]:
            for one in found.bins:
                axes.annotate(f"n={one.n}", (one.predicted, one.observed), xytext=(4, -9), textcoords="offset points",
                              fontsize=7, color=COLOURS["ink"])  # fmt: skip
    axes.set_xlabel("probability")
    axes.set_ylabel("share that came true")
    axes.set_yticks([i / 5 for i in range(6)])
    _legend(axes)
    return render(figure, "reliability")


def _legend(axes: Axes) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.25 * (high - low))
    axes.legend(loc="upper center", ncols=2, fontsize=8, frameon=False, labelcolor=COLOURS["ink"])
