"""Tables and figures of gates on published verdicts (studies/notes/evidence.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kbtrain.metrics.significance import Delta
from kbtrain.report.curves import gate_looks
from kbtrain.report.words import gate_name, percent, points, points_interval
from kbtrain.show import COLOURS, FILE_WIDTH, aligned_block, legend_above, new_figure, page
from published.fits import RIVAL
from published.tables import ranged, signed_range

MODELS = {
    "llama-3-8b-instruct": "Llama-3.1-8B", "gpt-4o": "GPT-4o", "flan-t5-xl": "Flan-T5-XL", "flan-t5-xxl": "Flan-T5-XXL",
}  # fmt: skip # names on the pages


def markdown(document: Mapping[str, Any]) -> str:
    """Tables of the page, one a theme."""
    tables, found = document["tables"], document["models"]
    sections = {
        "Claims": _claim_rows(document["claims"]),
        "Choice by cross-validation": _choice_rows(tables),
        "Accuracy at the threshold": _accuracy_rows(tables),
        "Area, test": _area_rows(tables, None),
        "Area minus the data set's mean, test": _area_rows(tables, "data_set"),
        "AUROC, test": _auroc_rows(tables),
        "Published rivals": _rival_rows(tables[document["model"]]),
        "Models by exact match": _model_rows(found),
        "Decisions by exact match": decision_rows(found["decisions"]),
        "Transfer between models": _transfer_rows(found),
        "Agreement of models": _agreement_rows(found),
    }
    return "\n\n".join(f"## {title}\n" + "\n".join(lines) for title, lines in sections.items()) + "\n"


def _claim_rows(families: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Comparisons that hold after the correction for their number, and how many were made."""
    lines = ["| model | questions | gate | minus | difference | p, Holm |", "|---|---|---|---|---|---|"]
    counts = []
    for name, family in families.items():
        holding = [one for one in family if one["p_holm"] < ALPHA]
        counts.append(f"`{name}`: {len(holding)} of {len(family)} comparisons hold")
        lines += [
            f"| {one['model']} | {one['part']} | `{one['gate']}` | {one['minus']} | {signed_range(one)} | "
            f"{one['p_holm']:.1g} |"
            for one in holding
        ]
    return ["; ".join(counts) + ".", "", *lines]


def _choice_rows(tables: Mapping[str, Any]) -> list[str]:
    lines = ["| model | chosen | area, cross-validated | corrected for the choice | area, test | minus data set, "
             "cross-validated | corrected | minus data set, test |", "|---" * 8 + "|"]  # fmt: skip
    for model, table in tables.items():
        on_test, both = table["parts"]["all"]["gates"][table["chosen"]], table["corrected"]
        cells = [
            *both["area"].values(),
            on_test["area"],
            *both["minus_data_set"].values(),
            on_test["minus"]["data_set"],
        ]
        lines.append(f"| {model} | `{table['chosen']}` | " + " | ".join(map(signed_range, cells)) + " |")
    return lines


def _accuracy_rows(tables: Mapping[str, Any]) -> list[str]:
    """Fixed policies, the oracle and the chosen gate, pooled and on each data set."""
    lines = ["| model | questions | n | never | always | oracle | data set alone | chosen gate | searched | "
             "minus never | minus always |", "|---" * 11 + "|"]  # fmt: skip
    for model, table in tables.items():
        for part, found in table["parts"].items():
            if "with_" not in part:
                own, alone = (found["decisions"][gate] for gate in (table["chosen"], "data_set"))
                shares = [*(found[name] for name in ("never", "always", "oracle")), alone["accuracy"], own["accuracy"]]
                minus = [signed_range(own[f"minus_{name}"]) for name in ("never", "always")]
                cells = [str(found["n"]), *(f"{share:.3f}" for share in shares), f"{own['searched']:.0%}", *minus]
                lines.append(f"| {model} | {part} | " + " | ".join(cells) + " |")
    return lines


def _area_rows(tables: Mapping[str, Any], minus: str | None) -> list[str]:
    """Areas of every gate, or their differences from the gate ``minus``, pooled, by model."""
    gates = dict.fromkeys(gate for table in tables.values() for gate in table["parts"]["all"]["gates"])
    lines = ["| gate | " + " | ".join(tables) + " |", "|---" * (len(tables) + 1) + "|"]
    for gate in gates:
        pooled = [table["parts"]["all"]["gates"].get(gate) for table in tables.values()]
        cells = [one and (one["area"] if minus is None else one["minus"].get(minus)) for one in pooled]
        if any(cells):
            lines.append(f"| `{gate}` | " + " | ".join(map(signed_range, cells)) + " |")
    return lines


def _auroc_rows(tables: Mapping[str, Any]) -> list[str]:
    """AUROC of "wrong without a search" and of "needed", pooled, by model."""
    gates = dict.fromkeys(gate for table in tables.values() for gate in table["parts"]["all"]["gates"])
    lines = ["| gate: wrong / needed | " + " | ".join(tables) + " |", "|---" * (len(tables) + 1) + "|"]
    for gate in gates:
        pooled = [table["parts"]["all"]["gates"].get(gate) for table in tables.values()]
        cells = [f"{one['auroc_wrong']:.3f} / {one['auroc_needed']:.3f}" if one else "" for one in pooled]
        lines.append(f"| `{gate}` | " + " | ".join(cells) + " |")
    return lines


def _rival_rows(table: Mapping[str, Any]) -> list[str]:
    """The chosen gate, every other and the published rivals on each part of the questions of one model."""
    lines = [f"Answers of {table['model']}.", "", "| questions | n | gate | area | minus data set | minus T5 | "
             "minus SeaKR | AUROC wrong | needed |", "|---" * 9 + "|"]  # fmt: skip
    for part, found in table["parts"].items():
        for gate, one in found["gates"].items():
            cells = [one["area"], *(one["minus"].get(other) for other in ("data_set", RIVAL, "seakr"))]
            lines.append(f"| {part} | {found['n']} | `{gate}` | " + " | ".join(map(signed_range, cells)) +
                         f" | {one['auroc_wrong']:.3f} | {one['auroc_needed']:.3f} |")  # fmt: skip
    return lines


def _model_rows(found: Mapping[str, Any]) -> list[str]:
    lines = ["| model | never | always | right only with passages | right only without |", "|---|---|---|---|---|"]
    return lines + [
        f"| {name} | {one['none']:.3f} | {one['one']:.3f} | {one['mended']} | {one['broken']} |"
        for name, one in found["accuracy"].items()
    ]


def _transfer_rows(found: Mapping[str, Any]) -> list[str]:
    sources = [*found["accuracy"], "data_set"]
    lines = ["| used for (trained on) | " + " | ".join(sources) + " |", "|---" * (len(sources) + 1) + "|"]
    return lines + [
        f"| {target} | " + " | ".join(signed_range(row[source]) for source in sources) + " |"
        for target, row in found["transfer"].items()
    ]


def _agreement_rows(found: Mapping[str, Any]) -> list[str]:
    lines = ["| models | agreement of wrong (kappa) | of needed |", "|---|---|---|"]
    return lines + [
        f"| {pair.replace(' | ', ', ')} | {signed_range(one['wrong'])} | {signed_range(one['needed'])} |"
        for pair, one in found["agreement"].items()
    ]


ALPHA = 0.05  # of a claim, after the correction for the number of comparisons
_SHOWN = 0.0005  # the least difference that shows in points with one digit


def closing_block(document: Mapping[str, Any], page: Path) -> list[str]:
    """Six lines for a terminal on the gate chosen by cross-validation, as an evaluation ends with."""
    table = document["tables"][document["model"]]
    whole = table["parts"]["all"]
    one = whole["decisions"][table["chosen"]]
    change, over = (Delta(**one[f"minus_{other}"]) for other in ("always", "random"))
    gain = f"{points(over.mean)} points, {points_interval(over)}"
    certain = "Yes, on these questions: skipping the same number of searches at random costs more"
    doubtful = "Not shown by these questions: as many searches skipped at random may do as well"
    return aligned_block({
        "tested": f"published answers of {table['model']} · {whole['n']} test questions",
        "without search": f"{percent(whole['never'])} % right",
        "always searching": f"{percent(whole['always'])} % right",
        "with the gate": f"{gate_name(table['chosen'])}, chosen by cross-validation: {percent(1 - one['searched'])} % "
        f"of the searches skipped, accuracy {percent(one['accuracy'])} % ({points(change.mean)} points, "
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
    lines += ["| answers of | skipped | `stack` | `own confidence` |", "|---|---|---|---|"]
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
    made, axes = new_figure(FILE_WIDTH, 3.4)
    colours = {gate: colour for gate, (colour, _) in gate_looks(("features", "reader")).items()}
    for gate, colour in ({"data_set": COLOURS["grey"]} | colours).items():
        found = [p for p in points if p["gate"] == gate]
        sizes = sorted({p["n"] for p in found})
        means = [float(np.mean([p["area"] for p in found if p["n"] == n])) for n in sizes]
        axes.plot(sizes, means, color=colour, label=gate_name(gate))
        axes.plot([p["n"] for p in found], [p["area"] for p in found], ".", color=colour, markersize=4)
    axes.axhline(0, color=COLOURS["grey"], linewidth=1)
    axes.set_xlabel("labelled training questions")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("area (random 0, oracle 1)")
    legend_above(axes, 3)
    return page(made)


def transfer_figure(found: Mapping[str, Any]) -> str:
    made, axes = new_figure(FILE_WIDTH, 3.8)
    targets = list(found["transfer"])
    for k, (colour, source) in enumerate(zip(("blue", "orange", "green", "red", "grey"), [*targets, "data_set"],
                                             strict=False)):  # fmt: skip
        values = [found["transfer"][target][source] for target in targets]
        places = [i + (k - 2) * 0.14 for i in range(len(targets))]
        ends = [[v["mean"] - v["low"] for v in values], [v["high"] - v["mean"] for v in values]]
        label = "data set alone" if source == "data_set" else f"trained on {MODELS.get(source, source)}"
        axes.errorbar(places, [v["mean"] for v in values], yerr=ends, fmt="o", markersize=4, color=COLOURS[colour],
                      label=label)  # fmt: skip
    axes.axhline(0, color=COLOURS["grey"], linewidth=1)
    axes.set_xticks(range(len(targets)), [MODELS.get(target, target) for target in targets])
    axes.set_xlabel("used for")
    axes.set_ylabel("area (random 0, oracle 1)")
    legend_above(axes, 2)
    return page(made)
