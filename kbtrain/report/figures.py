"""The figures of the report, each as one inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from kbtrain.evaluation.results import GateResult
from kbtrain.records import CONDITIONS, Condition, Effect
from kbtrain.report.label_statistics import BINS, EFFECTS, INTERVALS, Indicator, LabelStatistics
from kbtrain.svg import COLOURS, new_figure, render

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
