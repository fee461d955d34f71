"""Figures of the report and of a gate's own page, each as one inline SVG.

A gate's page shows the distribution of its scores over both kinds of questions, and their calibration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from kbtrain.errors import UserError, at
from kbtrain.evaluation.results import GateResult
from kbtrain.labeling.distribution import BINS, EFFECTS, INTERVALS, Indicator, LabelStatistics
from kbtrain.metrics.calibration import Calibrated, Calibration
from kbtrain.records import CONDITIONS, Condition, Effect, Outcome
from kbtrain.svg import COLOURS, new_figure, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINES = {
    "kbm_benefit": ("blue", "-"),
    "kbm_mastery": ("orange", "-"),
    "kbm_certainty": ("green", "-"),
    "relation_only": ("red", "--"),
    "prompt": ("purple", "-."),
    "oracle": ("ink", ":"),
    "random": ("grey", "--"),
}
_IN_THE_CORNER = 9  # more lines than these are named below the curves, not over them
_STYLES = ("-", "--", "-.", ":")  # a second mark beside the colour
EFFECT_COLOURS = dict(zip(EFFECTS, ("blue", "grey", "red"), strict=True))
_CONDITION_STYLES: dict[Condition, tuple[str, str]] = {
    "llm": ("blue", "-"),
    "rag": ("red", "--"),
    "mask": ("grey", ":"),
}
NAMES: dict[Condition, str] = {"llm": "LLM only", "rag": "All RAG", "mask": "MASK RAG"}


def accuracy_curve(gates: Sequence[GateResult], name: str = "curve") -> str:
    """Accuracy against retrieval ratio for every gate with a curve; a dot marks the threshold in use."""
    shown = [gate for gate in gates if gate.gate not in ("llm_only", "all_rag")]  # the two ends that all curves share
    below = len(shown) > _IN_THE_CORNER
    figure, axes = new_figure(5.4, 3.9 + 0.19 * below * -(-len(shown) // 3))
    for i, gate in enumerate(shown):
        colour, style = _LINES.get(gate.gate, (list(COLOURS)[i % 6], _STYLES[i // 6 % len(_STYLES)]))
        x, y = [100 * r for r in gate.curve.ratio], [100 * a for a in gate.curve.accuracy]
        axes.plot(x, y, style, color=COLOURS[colour], linewidth=1.6, label=gate.gate)
        if gate.gate != "random":
            axes.plot([100 * gate.retrieval_ratio], [100 * gate.accuracy], "o", color=COLOURS[colour], markersize=5)
    axes.set_xlabel("questions retrieved for (%)")
    axes.set_ylabel("questions answered right (%)")
    axes.set_xlim(0, 100)
    look: dict[str, Any] = {"fontsize": 8, "frameon": False, "labelcolor": COLOURS["ink"], "handlelength": 2.6}
    if below:
        figure.legend(loc="outside lower left", ncols=3, **look)
    else:
        axes.legend(loc="upper left", ncols=2, **look)
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.22 * (high - low))  # room for the legend
    return render(figure, name)


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
_BINS = 30


def read_calibration(path: Path) -> dict[str, Calibrated]:
    """Each gate's calibration for :data:`POSITIVE` from classify.json; empty if that was not made.

    Raises :class:`UserError` for a file that cannot be read.
    """
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        gates = {gate["gate"]: gate.get("calibration", {}) for gate in document["gates"]}
        adapter = TypeAdapter(Calibrated)
        return {name: adapter.validate_python(by[POSITIVE]) for name, by in gates.items() if POSITIVE in by}
    except (json.JSONDecodeError, KeyError, TypeError, ValidationError):
        raise UserError(f"{at(path)}: not a classification table of this version; run eval/classify.py again") from None


def gate_figures(
    gate: GateResult, outcomes: Sequence[Outcome], scores: Mapping[str, float], made: Mapping[str, Calibrated]
) -> dict[str, str]:
    """The SVGs of a gate's page by name; ``reliability`` only if its scores are probabilities."""
    values = [scores[o.question_id] for o in outcomes]
    cut = gate.threshold if gate.threshold is not None else 0.0
    needed = [o.rag_correct and not o.llm_correct for o in outcomes]
    found = {"scores": score_histogram(values, needed, cut), "reliability": ""}
    own = made.get(gate.gate)
    named = (("as scored", own.raw), ("temperature", own.at_temperature), ("isotonic", own.isotonic)) if own else ()
    curves = [(name, one) for name, one in named if one is not None]
    if own is not None and own.raw is not None:
        found["reliability"] = reliability(curves)
    return found


def score_histogram(scores: Sequence[float], needed: Sequence[bool], threshold: float) -> str:
    """Scores of the questions that need retrieval and of the others, with the threshold."""
    figure, axes = new_figure(5.4, 3.0)
    values, truth = np.asarray(scores), np.asarray(needed, dtype=bool)
    edges = np.histogram_bin_edges(values, bins=_BINS)
    for group, name, colour, style in ((truth, "needed", "blue", "-"), (~truth, "not needed", "orange", "--")):
        if group.any():
            shares = 100 * np.histogram(values[group], bins=edges)[0] / group.sum()
            axes.stairs(shares, edges, color=COLOURS[colour], linestyle=style, linewidth=1.6, label=name)
    axes.axvline(threshold, color=COLOURS["ink"], linewidth=1, label="threshold")
    axes.set_xlabel("score (higher: retrieval more needed)")
    axes.set_ylabel("questions of the kind (%)")
    _legend(axes)
    return render(figure, "scores")


def reliability(curves: Sequence[tuple[str, Calibration]]) -> str:
    """Reliability diagram: share of positives against mean probability in each bin; the diagonal is perfect."""
    figure, axes = new_figure(4.2, 3.6)
    axes.plot([0, 1], [0, 1], color=COLOURS["grey"], linewidth=1, linestyle=":", label="perfect")
    looks = (("blue", "-", "o"), ("orange", "--", "s"), ("green", "-.", "^"))
    for (name, found), (colour, style, marker) in zip(curves, looks, strict=False):
        x, y = [b.predicted for b in found.bins], [b.observed for b in found.bins]
        label = f"{name} (ECE {found.ece:.3f})"
        axes.plot(x, y, style, marker=marker, color=COLOURS[colour], linewidth=1.4, markersize=4, label=label)
    axes.set_xlabel("probability")
    axes.set_ylabel("share that came true")
    axes.set_yticks([i / 5 for i in range(6)])
    _legend(axes)
    return render(figure, "reliability")


def _legend(axes: Axes) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.25 * (high - low))
    axes.legend(loc="upper center", ncols=2, fontsize=8, frameon=False, labelcolor=COLOURS["ink"])
