"""Figures of a gate's own page: how its scores part the questions, and whether they mean what they say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import TypeAdapter, ValidationError

from kbtrain.errors import UserError, at
from kbtrain.evaluation.results import GateResult
from kbtrain.metrics.calibration import Calibrated, Calibration
from kbtrain.records import Outcome
from kbtrain.svg import COLOURS, new_figure, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
