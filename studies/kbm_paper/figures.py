"""Figures of the analyses of stored answers, each as one inline SVG; every model has a colour and its own mark."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from kbm_paper.label_statistics import INTERVALS, LabelStatistics
from kbm_paper.run_analysis import RunAnalysis
from kbm_paper.tallies import TauSweep
from kbtrain.labeling.distribution import EFFECTS, Indicator
from kbtrain.records import CONDITIONS, Condition, Effect
from kbtrain.report.words import CONDITION_NAMES
from kbtrain.show import COLOURS, legend_above, new_figure, render

_MODELS = (("blue", "o"), ("red", "s"), ("green", "^"), ("purple", "D"), ("orange", "v"), ("sky", "P"))


_BARS = {"llm": ("blue", ""), "rag": ("red", "//"), "mask": ("grey", "..")}


_EFFECT_COLOURS = dict(zip(EFFECTS, ("blue", "grey", "red"), strict=True))


_NAMED_TAUS = (0.2, 0.5, 0.8)


def legend_inside(axes: Any, columns: int, room: float) -> None:
    """A legend at the top within the axes, which get ``room`` for it: a share of their height."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + room * (high - low))
    axes.legend(loc="upper center", ncols=columns, fontsize=8, frameon=False, labelcolor=COLOURS["ink"])


def accuracy_bars(runs: Sequence[RunAnalysis]) -> str:
    """Figure 1: accuracy under the three conditions, by model, with 95 % intervals."""
    figure, axes = new_figure(max(4.2, 1.6 + 1.3 * len(runs)), 3.3)
    used = [c for c in CONDITIONS if any(c in run.accuracies.conditions for run in runs)]
    for place, condition in enumerate(used):
        colour, hatch = _BARS[condition]
        bars = [(i, _accuracy(run, condition)) for i, run in enumerate(runs)]
        rows = [(i, *bar) for i, bar in bars if bar is not None]
        x = [i + (place - (len(used) - 1) / 2) * 0.26 for i, *_ in rows]
        heights = [100 * mean for _, mean, _, _ in rows]
        axes.bar(x, heights, 0.24, color=COLOURS[colour], hatch=hatch, edgecolor=COLOURS["ink"], linewidth=0.5,
                 label=CONDITION_NAMES[condition], yerr=_bars(rows), ecolor=COLOURS["ink"], capsize=2)  # fmt: skip
    axes.set_xticks(range(len(runs)), [textwrap.fill(run.name, 16) for run in runs])  # characters within 1.3 inches
    axes.set_ylabel("answers right (%)")
    axes.set_ylim(0, None)
    legend_inside(axes, len(used), 0.16)
    return render(figure, "figure-1")


def _accuracy(run: RunAnalysis, condition: Any) -> tuple[float, float, float] | None:
    """Greedy answers where there are any, else the expected accuracy of a sampled one."""
    tally = run.accuracies.conditions.get(condition)
    if tally is None:
        return None
    if tally.greedy is not None:
        return tally.greedy
    mean = tally.sampled.mean
    return None if mean is None else (mean, *(tally.sampled.interval or (mean, mean)))


def copy_bars(runs: Sequence[RunAnalysis]) -> str | None:
    """Figure 2: share of MASK among questions with certainty 1 under ``mask``; None if no model has such questions."""
    rows = [(i, *run.copying.share) for i, run in enumerate(runs) if run.copying.share is not None]
    if not rows:
        return None
    figure, axes = new_figure(max(3.2, 1.4 + 1.3 * len(runs)), 3.0)
    axes.bar([row[0] for row in rows], [100 * row[1] for row in rows], 0.5, color=COLOURS["purple"],
             edgecolor=COLOURS["ink"], linewidth=0.5, yerr=_bars(rows), ecolor=COLOURS["ink"], capsize=3)  # fmt: skip
    labels = [f"{textwrap.fill(run.name, 16)}\nn = {run.copying.n_certain}" for run in runs]
    axes.set_xticks(range(len(runs)), labels)
    axes.set_ylabel("outputs that are MASK (%)")
    axes.set_ylim(0, 100)
    return render(figure, "figure-2")


def _bars(rows: Sequence[tuple[Any, ...]]) -> list[list[float]]:
    """Error bars of (place, mean, low, high), in percent."""
    return [
        [100 * max(0.0, mean - low) for _, mean, low, _ in rows],
        [100 * max(0.0, high - mean) for _, mean, _, high in rows],
    ]


def sweep_curves(runs: Sequence[RunAnalysis], indicator: Indicator) -> str | None:
    """Retrieval saved against change of accuracy, one curve a model; dashed: the answers that decide also count."""
    figure, axes = new_figure(4.6, 3.4)
    drawn = False
    for i, run in enumerate(runs):
        colour, mark = _MODELS[i % len(_MODELS)]
        sweep = run.sweeps[indicator]
        for by_tau, style in ((sweep.held_out, "-"), (sweep.same, "--")):
            rows = TauSweep.rows(by_tau)
            drawn |= bool(rows)
            label = run.name if style == "-" and rows else None
            axes.plot([100 * row.saved for row in rows], [100 * row.change for row in rows], style,
                      color=COLOURS[colour], linewidth=1.4, label=label)  # fmt: skip
            for row in rows if style == "-" else ():
                if row.tau in _NAMED_TAUS:
                    x, y = 100 * row.saved, 100 * row.change
                    axes.plot([x], [y], mark, color=COLOURS[colour], markersize=5)
                    axes.annotate(f"{row.tau:g}", (x, y), (4, 4), textcoords="offset points", fontsize=8,
                                  color=COLOURS["ink"])  # fmt: skip
    if not drawn:
        return None
    axes.axhline(0, color=COLOURS["ink"], linewidth=0.8)
    axes.set_xlabel("retrievals saved (%)")
    axes.set_ylabel("accuracy against All RAG (points)")
    axes.legend(loc="lower left", fontsize=8, frameon=False, labelcolor=COLOURS["ink"])
    return render(figure, f"sweep-{indicator}")


def stability_curves(runs: Sequence[RunAnalysis], values: tuple[str, str], unit: str, name: str) -> str | None:
    """A figure over I: each of ``values`` (field of :class:`AtSize`, line style) as one line a model, in percent."""
    figure, axes = new_figure(4.2, 3.0)
    sizes: set[int] = set()
    for i, run in enumerate(runs):
        colour, mark = _MODELS[i % len(_MODELS)]
        for value, style in zip(values, "-:", strict=True):
            means = [(size, getattr(at, value).mean) for size, at in run.stability.sizes.items()]
            rows = [(size, mean) for size, mean in means if mean is not None]
            sizes |= {size for size, _ in rows}
            label = run.name if value == values[0] and rows else None
            axes.plot([size for size, _ in rows], [100 * mean for _, mean in rows], mark + style,
                      color=COLOURS[colour], linewidth=1.4, markersize=4.5, label=label)  # fmt: skip
    if not sizes:
        return None
    axes.set_xticks(sorted(sizes))
    axes.set_xlabel("sampled answers I")
    axes.set_ylabel(unit)
    axes.set_ylim(0, max(5.0, axes.get_ylim()[1]))  # percent; a line of zeros should lie on the axis
    axes.legend(fontsize=8, frameon=False, labelcolor=COLOURS["ink"])
    return render(figure, name)


def panel(statistics: LabelStatistics, indicator: Indicator, condition: Condition, prefix: str) -> str | None:
    """One panel of KBM's figure 3: the effects of retrieval over the intervals of an indicator; None without data.

    The panels of an indicator share their scale. ``prefix``: of the ids in the SVG, one for each run of a page.
    """
    shares = {c: _shares(statistics, indicator, c) for c in CONDITIONS}
    if not any(map(sum, shares[condition].values())):
        return None
    figure, axes = new_figure(3.3, 2.8)
    bottom = [0.0] * INTERVALS
    for effect, heights in shares[condition].items():
        colour = COLOURS[_EFFECT_COLOURS[effect]]
        axes.bar(range(INTERVALS), heights, bottom=bottom, color=colour, width=0.8, label=effect)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    for i, height in enumerate(bottom):
        n = sum(statistics.panels[indicator, condition, i, effect] for effect in EFFECTS)
        axes.annotate(f"{n:,}", (i, height), (0, 2), textcoords="offset points", fontsize=8, color=COLOURS["ink"],
                      horizontalalignment="center")  # fmt: skip
    steps = [100 * i / INTERVALS for i in range(INTERVALS + 1)]
    axes.set_xticks(range(INTERVALS), [f"{a:g}-{b:g}" for a, b in pairwise(steps)], fontsize=8)
    axes.set_ylim(0, 1.12 * max(max(map(sum, zip(*c.values(), strict=True))) for c in shares.values()))
    name = "accuracy (mastery, %)" if indicator == "mastery" else "certainty (%)"
    axes.set_xlabel(f"{name}\nabove each bar: number of questions")
    axes.set_ylabel("questions (%)")
    axes.set_title(CONDITION_NAMES[condition], fontsize=10, color=COLOURS["ink"], pad=20)
    legend_above(axes, len(EFFECTS), 8)
    return render(figure, f"{prefix}-{indicator}-{condition}")


def _shares(statistics: LabelStatistics, indicator: Indicator, condition: Condition) -> dict[Effect, list[float]]:
    """Percent of the questions by effect and interval."""
    counts = {e: [statistics.panels[indicator, condition, i, e] for i in range(INTERVALS)] for e in EFFECTS}
    total = sum(map(sum, counts.values())) or 1
    return {effect: [100 * count / total for count in row] for effect, row in counts.items()}
