"""Tables and figure of gates that were cross-validated over dialogues."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from published.tables import ranged, signed_range

from kbtrain.report.curves import gate_looks
from kbtrain.report.words import gate_name
from kbtrain.show import FILE_WIDTH, legend_above, new_figure, page

_GATES = {"probe": "encoder_probe"}  # the candidate whose name elsewhere is that of another gate


def markdown(document: Mapping[str, Any]) -> str:
    """Figures of each candidate; what its AUROC and F1 are above the chosen one's; reliability; the learning curve."""
    chosen = document.get("chosen")
    lines = [f"{document['turns']:,} turns ({document['positive']} positive) of {document['dialogues']} dialogues."]
    lines += [f"Chosen: `{chosen}`; of those that read no acts or slots: `{document['chosen_without_annotation']}`."
              ] if chosen else []  # fmt: skip
    lines += ["", "| candidate | AUROC | F1 | precision | recall | AUROC minus the chosen | F1 minus the chosen |",
              "|---|---|---|---|---|---|---|"]  # fmt: skip
    for name, one in document["candidates"].items():
        minus = one["minus"].get(chosen)
        cells = [ranged(one["auroc"]), ranged(one["f1"]), f"{one['precision']:.3f}", f"{one['recall']:.3f}",
                 *(signed_range(value) for value in minus or (None, None))]  # fmt: skip
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    for name, one in document.get("corrected", {}).items():
        lines += ["", f"Corrected for its choice: `{name}` has AUROC {ranged(one['auroc'])}, F1 {ranged(one['f1'])}."]
    for name, one in document["calibration"].items():
        lines += ["", f"Reliability of `{name}`: ECE {one['ece']:.3f}, Brier score {one['brier']:.3f}.", "",
                  "| score | turns | mean score | positive |", "|---|---|---|---|"]  # fmt: skip
        lines += [f"| {b['low']:.1f} to {b['high']:.1f} | {b['n'] / one['n']:.1%} | {b['predicted']:.3f} | "
                  f"{b['observed']:.3f} |" for b in one["bins"]]  # fmt: skip
    for name, sizes in document.get("by_dialogues", {}).items():
        told = ", ".join(f"{size}: {statistics.fmean(values):.3f}" for size, values in sizes.items())
        lines += ["", f"AUROC of `{name}` by dialogues fitted to: {told}."]
    return "\n".join(lines) + "\n"


def figure(document: Mapping[str, Any]) -> str:
    """AUROC of held-out turns by the number of dialogues: a line of means, a dot for each repeat."""
    made, axes = new_figure(FILE_WIDTH, 3.4)
    gates = {name: _GATES.get(name, name) for name in document["by_dialogues"]}
    looks = gate_looks(gates.values())
    for name, sizes in document["by_dialogues"].items():
        gate = gates[name]
        colour, _ = looks[gate]
        sizes = {int(size): values for size, values in sizes.items()}
        axes.plot(list(sizes), [statistics.fmean(v) for v in sizes.values()], color=colour, label=gate_name(gate))
        dots = [(size, value) for size, values in sizes.items() for value in values]
        axes.plot([x for x, _ in dots], [y for _, y in dots], ".", color=colour, markersize=4)
    axes.set_xlabel("dialogues fitted to")
    axes.set_ylabel("AUROC, cross-validated")
    legend_above(axes, 2)
    return page(made)
