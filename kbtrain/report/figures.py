"""Figures of the report and of a gate's own page, each as one inline SVG.

A gate's page shows the distribution of its scores over both kinds of questions, and their calibration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from kbtrain.errors import UserError, at
from kbtrain.io.files import path_exists
from kbtrain.io.jsonl import read_value
from kbtrain.labeling.distribution import BINS, EFFECTS, INTERVALS, Indicator, LabelStatistics
from kbtrain.metrics.calibration import Calibrated, Calibration, equal_count_bins
from kbtrain.metrics.registry import METRICS
from kbtrain.metrics.significance import wilson
from kbtrain.records import CONDITIONS, Condition, Effect, Outcome
from kbtrain.show import COLOURS, legend_above, legend_inside, new_figure, render

_EFFECT_COLOURS = dict(zip(EFFECTS, ("blue", "grey", "red"), strict=True))
_CONDITION_STYLES: dict[Condition, tuple[str, str]] = {
    "llm": ("blue", "-"),
    "rag": ("red", "--"),
    "mask": ("grey", ":"),
}
NAMES: dict[Condition, str] = {"llm": "LLM only", "rag": "All RAG", "mask": "MASK RAG"}


def histogram(statistics: LabelStatistics, indicator: Indicator) -> str:
    """Distribution of an indicator over the questions, one line per condition, with tau."""
    figure, axes = new_figure(4.2, 2.9)
    edges = [100 * i / BINS for i in range(BINS + 1)]
    for condition in CONDITIONS:
        counts = [statistics.histograms[indicator, condition, i] for i in range(BINS)]
        if not sum(counts):
            continue
        shares = [100 * count / sum(counts) for count in counts]
        colour, style = _CONDITION_STYLES[condition]
        axes.stairs(shares, edges, color=COLOURS[colour], linestyle=style, linewidth=1.6, label=NAMES[condition])
    tau = statistics.tau_mastery if indicator == "mastery" else statistics.tau_certainty
    axes.axvline(100 * tau, color=COLOURS["ink"], linewidth=1, label=f"tau = {100 * tau:.3g} %")
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"{indicator} (%)")
    axes.set_ylabel("questions (%)")
    legend_inside(axes, 2, 0.3)
    return render(figure, f"histogram-{indicator}")


def panel(statistics: LabelStatistics, indicator: Indicator, condition: Condition, prefix: str = "panel") -> str | None:
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
    axes.set_title(NAMES[condition], fontsize=10, color=COLOURS["ink"], pad=20)
    legend_above(axes, len(EFFECTS), 8)
    return render(figure, f"{prefix}-{indicator}-{condition}")


def _shares(statistics: LabelStatistics, indicator: Indicator, condition: Condition) -> dict[Effect, list[float]]:
    """Percent of the questions by effect and interval."""
    counts = {e: [statistics.panels[indicator, condition, i, e] for i in range(INTERVALS)] for e in EFFECTS}
    total = sum(map(sum, counts.values())) or 1
    return {effect: [100 * count / total for count in row] for effect, row in counts.items()}


POSITIVE = "needed"  # the definition whose calibration is drawn
_BINS = 10


@dataclass(frozen=True)
class ClassifiedGate:
    """A gate's calibration and registered metrics for :data:`POSITIVE`, as classify.json has them."""

    calibration: Calibrated | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The metrics by their headings; empty where there are none."""
        values = ((METRICS[name].title, value) for name, value in self.metrics.items() if value is not None)
        return ", ".join(f"{title} {value:.3f}" for title, value in values)


def read_classified(path: Path) -> dict[str, ClassifiedGate]:
    """Each gate's figures from classify.json; empty if that was not made.

    Raises :class:`UserError` for a file that cannot be read.
    """
    if not path_exists(path):
        return {}
    try:
        adapter, numbers, by_gate = TypeAdapter(Calibrated), TypeAdapter(dict[str, float | None]), {}
        for gate in read_value(path)["gates"]:
            definitions = [row for row in gate.get("definitions", ()) if row["positive"] == POSITIVE]
            values = {**(definitions[0] if definitions else {}), **gate.get("further", {}).get(POSITIVE, {})}
            stored = gate.get("calibration", {}).get(POSITIVE)
            metrics = numbers.validate_python({name: values[name] for name in METRICS if name in values})
            calibration = None if stored is None else adapter.validate_python(stored)
            by_gate[str(gate["gate"])] = ClassifiedGate(calibration, metrics)
    except (AttributeError, KeyError, TypeError, ValidationError):
        raise UserError(f"{at(path)}: not a classification table of this version; run eval/classify.py again") from None
    return by_gate


def gate_figures(
    outcomes: Sequence[Outcome], scores: Mapping[str, float], threshold: float, fit: Calibrated | None
) -> dict[str, str]:
    """The SVGs of a gate's page by name; ``reliability`` only if its scores are probabilities."""
    values = [scores[o.question_id] for o in outcomes]
    needed = [o.rag_correct and not o.llm_correct for o in outcomes]
    svgs = {"scores": score_bins(values, needed, threshold), "reliability": ""}
    named = (("as scored", fit.raw), ("temperature", fit.at_temperature), ("isotonic", fit.isotonic)) if fit else ()
    curves = [(name, curve) for name, curve in named if curve is not None]
    if fit is not None and fit.raw is not None:
        svgs["reliability"] = reliability(curves)
    return svgs


def score_bins(scores: Sequence[float], needed: Sequence[bool], threshold: float) -> str:
    """Share of questions that need retrieval in bins of equally many questions by score, with Wilson's intervals.

    Below each bin its lowest and highest score and its n; the line separates what is searched for. Equal scores stay
    in one bin.
    """
    values, truth = np.asarray(scores), np.asarray(needed, dtype=bool)
    groups = equal_count_bins(values, _BINS)
    figure, axes = new_figure(5.4, 3.4)
    for i, inside in enumerate(groups):
        share, n = float(truth[inside].mean()), len(inside)
        low, high = wilson(int(truth[inside].sum()), n)
        searched = float((values[inside] > threshold).mean()) > 0.5
        colour = COLOURS["blue" if searched else "orange"]
        axes.bar([i], [100 * share], width=0.8, color=colour)
        axes.plot([i, i], [100 * low, 100 * high], color=COLOURS["ink"], linewidth=1)
    axes.axhline(100 * float(truth.mean()), color=COLOURS["grey"], linewidth=1, linestyle="--")
    names = [f"{values[i].min():.3g}\n{values[i].max():.3g}\nn={len(i)}" for i in groups]
    axes.set_xticks(range(len(groups)), names, fontsize=7)
    axes.set_xlabel("score: lowest, highest and number of questions of each bin")
    axes.set_ylabel("search needed (%)")
    return render(figure, "scores")


def reliability(curves: Sequence[tuple[str, Calibration]]) -> str:
    """Reliability diagram: share of positives against mean probability in bins of about equally many questions.

    The diagonal is perfect. Older tables have bins of equal width.
    """
    figure, axes = new_figure(4.2, 3.6)
    axes.plot([0, 100], [0, 100], color=COLOURS["grey"], linewidth=1, linestyle=":", label="perfect")
    looks = (("blue", "-", "o"), ("orange", "--", "s"), ("green", "-.", "^"))
    for (name, curve), (colour, style, marker) in zip(curves, looks, strict=False):
        bins = curve.even or curve.bins
        x, y = [100 * b.predicted for b in bins], [100 * b.observed for b in bins]
        label = f"{name} (ECE {100 * curve.ece:.1f} %)"
        axes.plot(x, y, style, marker=marker, color=COLOURS[colour], linewidth=1.4, markersize=4, label=label)
        if curve is curves[0][1]:
            sizes = [part.n for part in bins]
            each = str(sizes[0]) if len(set(sizes)) == 1 else f"{min(sizes)} to {max(sizes)}"
            axes.set_xlabel(f"probability (%); {len(bins)} bins of {each} questions as scored")
    axes.set_ylabel("came true (%)")
    axes.set_yticks(range(0, 101, 20))
    legend_inside(axes, 2, 0.25)
    return render(figure, "reliability")
