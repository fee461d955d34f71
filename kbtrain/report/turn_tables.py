"""Gates on dialogue turns as text tables."""

from __future__ import annotations

from collections.abc import Sequence

from kbtrain.metrics.turns import METRICS, Comparison, GateTurns
from kbtrain.text_table import aligned


def gate_table(found: Sequence[GateTurns]) -> str:
    """Mean over seeds, its 95 % interval over dialogues, and the standard deviation over seeds (sd)."""
    rows = []
    for gate in found:
        cells = []
        for metric in METRICS:
            value, spread = gate.metrics[metric], gate.spread[metric]
            sd = "" if spread is None else f" sd {spread:.3f}"
            cells.append(f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}]{sd}")
        rows.append([gate.gate, str(len(gate.thresholds)), f"{gate.retrieved:.3f}", *cells])
    return aligned(("gate", "seeds", "retrieved", "precision", "recall", "F1", "AUC", "AP", "FDR"), rows)


def difference_table(differences: Sequence[Comparison]) -> str:
    """One row a difference; the last column says whether its interval excludes 0."""
    rows = []
    for d in differences:
        value = d.difference
        apart = "yes" if value.low > 0 or value.high < 0 else "no"
        rows.append(
            [f"{d.better} - {d.than}", d.metric, f"{value.mean:+.3f} [{value.low:+.3f}, {value.high:+.3f}]", apart]
        )
    return aligned(("difference", "metric", "95 % interval", "excludes 0"), rows)
