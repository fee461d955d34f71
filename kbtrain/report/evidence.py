"""Tables and figures of gates on published verdicts (docs/evidence.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kbtrain.evaluation.evidence import RIVAL
from kbtrain.metrics.significance import Delta
from kbtrain.report.first_screen import aligned_block
from kbtrain.report.words import gate_name, percent, points, points_interval, ranged, signed_range
from kbtrain.svg import COLOURS, new_figure, page


def markdown(document: Mapping[str, Any]) -> str:
    """Tables of the page."""
    table, lines = document["main"], []
    lines += [f"Answers of {table['model']}, published grading; chosen by cross-validation: `{table['chosen']}`.", ""]
    lines += ["| gate | area, cross-validated | minus data set only | area, test | minus data set only | minus T5 | "
              "AUROC wrong | needed |", "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    pooled = table["parts"]["all"]["gates"]
    for name, one in pooled.items():
        cv = table["cross_validated"].get(name)
        over = table["cross_validated_minus_data_set"].get(name)
        minus = (one["minus"].get(other) for other in ("data_set", RIVAL))
        cells = [*map(signed_range, (cv, over, one["area"], *minus)), f"{one['auroc_wrong']:.3f}",
                 f"{one['auroc_needed']:.3f}"]  # fmt: skip
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    for part, found in table["parts"].items():
        if part != "all":
            lines += ["", f"{part}, {found['n']}: never {found['never']:.3f}, always {found['always']:.3f}, oracle "
                      f"{found['oracle']:.3f}", "", "| gate | area, test | minus SeaKR | AUROC wrong | needed |",
                      "|---|---|---|---|---|"]  # fmt: skip
            for name, one in found["gates"].items():
                lines.append(f"| `{name}` | {signed_range(one['area'])} | {signed_range(one['minus'].get('seakr'))} | "
                             f"{one['auroc_wrong']:.3f} | {one['auroc_needed']:.3f} |")  # fmt: skip
    lines += ["", *decision_rows(table["decisions"])]
    found = document["models"]
    lines += ["", "| model | never | always | mended | broken |", "|---|---|---|---|---|"]
    lines += [f"| {name} | {one['none']:.3f} | {one['one']:.3f} | {one['mended']} | {one['broken']} |"
              for name, one in found["accuracy"].items()]  # fmt: skip
    lines += ["", *decision_rows(found["decisions"]), ""]
    sources = [*found["accuracy"], "data_set"]
    lines += ["| used for (trained on) | " + " | ".join(sources) + " |", "|---" * (len(sources) + 1) + "|"]
    lines += [f"| {target} | " + " | ".join(signed_range(row[source]) for source in sources) + " |"
              for target, row in found["transfer"].items()]  # fmt: skip
    lines += ["", "| models | agreement of wrong (kappa) | of needed |", "|---|---|---|"]
    lines += [
        f"| {pair} | {signed_range(one['wrong'])} | {signed_range(one['needed'])} |"
        for pair, one in found["agreement"].items()
    ]
    return "\n".join(lines) + "\n"


_SHOWN = 0.0005  # the least difference that shows in points with one digit


def closing_block(document: Mapping[str, Any], page: Path) -> list[str]:
    """Six lines for a terminal on the gate chosen by cross-validation, as an evaluation ends with."""
    table = document["main"]
    whole, one = table["parts"]["all"], table["decisions"][table["chosen"]]
    change, over = (Delta(**one[f"minus_{other}"]) for other in ("always", "random"))
    gain = f"{points(over.mean)} points, {points_interval(over)}"
    certain = "This is certain: as many searches left out at random would cost more"
    doubtful = "This is NOT certain: as many searches left out at random may do as well"
    return aligned_block({
        "tested": f"published answers of {table['model']} · {whole['n']} test questions",
        "without search": f"{percent(whole['never'])} % right",
        "always searching": f"{percent(whole['always'])} % right",
        "with the gate": f"{gate_name(table['chosen'])}, chosen by cross-validation: {percent(1 - one['searched'])} % "
        f"of the searches saved, accuracy {percent(one['accuracy'])} % ({points(change.mean)} points, "
        f"{points_interval(change)})",
        "is that real?": f"{certain if over.low >= _SHOWN else doubtful} ({gain}).",
        "next": f"open {page.resolve()}",
    })  # fmt: skip


def decision_rows(decisions: Mapping[str, Any]) -> list[str]:
    lines = ["| gate | accuracy | searched | minus never | minus always | minus random | questions for 2 points |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for name, one in decisions.items():
        cells = [f"{one['accuracy']:.3f}", f"{one['searched']:.0%}", *(signed_range(one[f"minus_{k}"]) for k in
                 ("never", "always", "random")), f"{one['questions_for_two_points']:,}"]  # fmt: skip
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def closed_book_markdown(document: Mapping[str, Any]) -> str:
    """AUROC of "wrong" of every gate for each model's answers, then for all of them together."""
    parts = {**document["models"], "all models": document["pooled"]}
    gates = list(document["pooled"]["gates"])
    lines = [
        "| answers of | wrong | " + " | ".join(f"`{gate}`" for gate in gates) + " |",
        "|---" * (len(gates) + 2) + "|",
    ]
    for name, part in parts.items():
        cells = [ranged(part["gates"][gate]["all"]) for gate in gates]
        lines.append(f"| {name} | {part['wrong']:.3f} | " + " | ".join(cells) + " |")
    lines += ["", "Without answers whose verdict is not clear:", ""]
    lines += ["| answers of | left out | `stack` | `own confidence` |", "|---|---|---|---|"]
    for name, part in parts.items():
        cells = [ranged(part["gates"][gate]["clear"]) for gate in ("stack", "own confidence")]
        lines.append(f"| {name} | {part['doubtful']} | " + " | ".join(cells) + " |")
    above = document["pooled"]["gates"]["stack"]["minus"]
    lines += [
        "",
        "All models, `stack` minus: " + "; ".join(f"`{gate}` {signed_range(value)}" for gate, value in above.items()),
    ]
    return "\n".join(lines) + "\n"


def learning_figure(points: Sequence[Mapping[str, Any]]) -> str:
    made, axes = new_figure(6.4, 3.4)
    for colour, gate in zip(("grey", "blue", "orange"), ("data_set", "features", "reader"), strict=True):
        found = [p for p in points if p["gate"] == gate]
        sizes = sorted({p["n"] for p in found})
        means = [float(np.mean([p["area"] for p in found if p["n"] == n])) for n in sizes]
        axes.plot(sizes, means, color=COLOURS[colour], label=gate)
        axes.plot([p["n"] for p in found], [p["area"] for p in found], ".", color=COLOURS[colour], markersize=4)
    axes.axhline(0, color=COLOURS["grey"], linewidth=1)
    axes.set_xlabel("labelled training questions")
    axes.set_ylabel("area (random 0, oracle 1)")
    axes.legend(fontsize=8, frameon=False)
    return page(made)


def transfer_figure(found: Mapping[str, Any]) -> str:
    made, axes = new_figure(6.4, 3.4)
    targets = list(found["transfer"])
    for k, (colour, source) in enumerate(zip(("blue", "orange", "green", "red", "grey"), [*targets, "data_set"],
                                             strict=False)):  # fmt: skip
        values = [found["transfer"][target][source] for target in targets]
        places = [i + (k - 2) * 0.14 for i in range(len(targets))]
        ends = [[v["mean"] - v["low"] for v in values], [v["high"] - v["mean"] for v in values]]
        label = source if source == "data_set" else f"trained on {source}"
        axes.errorbar(places, [v["mean"] for v in values], yerr=ends, fmt="o", markersize=4, color=COLOURS[colour],
                      label=label)  # fmt: skip
    axes.axhline(0, color=COLOURS["grey"], linewidth=1)
    axes.set_xticks(range(len(targets)), targets)
    axes.set_ylabel("area (random 0, oracle 1)")
    axes.legend(fontsize=7, frameon=False)
    return page(made)
