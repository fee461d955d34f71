"""Tables of an evaluation: named columns and rows of numbers, as text, Markdown or JSON with the same figures.

Also text tables of gates on questions and on dialogue turns.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kbtrain.evaluation.decisions import GateClassification
from kbtrain.metrics.registry import METRICS, Classification
from kbtrain.metrics.significance import Delta
from kbtrain.metrics.turns import GateDifference, GateTurns
from kbtrain.report.words import percent, points
from kbtrain.show import aligned, number, signed

Kind = Literal["text", "count", "percent", "points", "decimal", "change"]
Value = str | float | int | None


@dataclass(frozen=True)
class Column:
    """A column: ``percent`` shows a share as 60.1, ``points`` a difference of shares as +1.2 (percentage points),
    ``change`` a relative change as -0.47%."""

    name: str
    kind: Kind = "percent"


@dataclass(frozen=True)
class Table:
    """Columns and rows; ``note`` describes the numbers; ``rows`` hold raw values (shares in [0, 1]) in the order of
    columns, None where undefined."""

    name: str
    title: str
    note: str
    columns: list[Column]
    rows: list[list[Value]]


def format_cell(value: Value, kind: Kind) -> str:
    """A cell's text; undefined is a dash."""
    if value is None:
        return "-"
    if isinstance(value, str) or kind in ("text", "count"):
        return str(value)
    if kind in ("percent", "points"):
        return percent(value) if kind == "percent" else points(value)
    if kind == "change":
        return f"{round(100 * value, 2) + 0.0:+.2f}%"
    return f"{value:.4g}"


def cells(table: Table) -> list[list[str]]:
    kinds = [column.kind for column in table.columns]
    return [[format_cell(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in table.rows]


def as_text(table: Table) -> str:
    return "\n".join([table.title, aligned([column.name for column in table.columns], cells(table)), table.note])


def as_markdown(table: Table) -> str:
    """A Markdown table; texts are escaped."""
    head = [column.name for column in table.columns]
    lines = [head, *cells(table)]
    body = ["| " + " | ".join(map(escape_markdown, line)) + " |" for line in lines]
    body.insert(1, "|---|" + "--:|" * (len(head) - 1))
    return f"## {escape_markdown(table.title)}\n\n" + "\n".join(body) + f"\n\n{escape_markdown(table.note)}\n"


def escape_markdown(text: object) -> str:
    """Text that a Markdown reader shows as it is: no tag, no emphasis, no link, no new table cell or line."""
    escaped = re.sub(r"([\\`*\[\]#|~]|(?<!\w)_|_(?!\w))", r"\\\1", html.escape(str(text), quote=False))
    return escaped.replace("\r", "").replace("\n", "<br>")


def difference(value: Delta | None) -> str:
    """A difference with its interval in brackets; empty for None."""
    return "" if value is None else f"{signed(value.mean)} [{signed(value.low)}, {signed(value.high)}]"


def question_table(gates: Sequence[GateClassification]) -> str:
    """Gates on questions, one row per gate and definition of "retrieval needed"."""
    further = [name for name in METRICS if name not in Classification.__dataclass_fields__]
    head = ("gate", "positive", "share", "retrieved", "precision", "recall", "F1", "FDR", "AUC", "AP", "Brier", "ECE",
            *(METRICS[name].title for name in further))  # fmt: skip
    rows = []
    for gate in gates:
        for d in gate.definitions:
            values = (d.n_positive / d.n, gate.retrieval_ratio, d.precision, d.recall, d.f1, d.fdr, d.auroc)
            fit = gate.calibration.get(d.positive)
            errors = (fit.brier, fit.ece) if fit else (None, None)
            more = [gate.further[d.positive][name] for name in further]
            figures = (*values, d.average_precision, *errors, *more)
            rows.append([gate.gate + gate.seen.mark, d.positive, *map(number, figures)])
    return aligned(head, rows)


def gate_table(gates: Sequence[GateTurns]) -> str:
    """Mean over seeds with its 95 % interval over dialogues, standard deviation over seeds (sd); "-" if undefined."""
    rows = []
    for gate in gates:
        cells = []
        for metric in METRICS:
            value, spread = gate.metrics.get(metric), gate.spread.get(metric)
            sd = "" if spread is None else f" sd {spread:.3f}"
            cells.append("-" if value is None else f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}]{sd}")
        rows.append([gate.gate, str(len(gate.thresholds)), f"{gate.retrieved:.3f}", *cells])
    return aligned(("gate", "seeds", "retrieved", *(metric.title for metric in METRICS.values())), rows)


def difference_table(differences: Sequence[GateDifference]) -> str:
    """One row a difference; the last column is "yes" if its interval excludes 0."""
    rows = []
    for d in differences:
        value = d.difference
        apart = "yes" if value.low > 0 or value.high < 0 else "no"
        rows.append(
            [f"{d.better} - {d.than}", d.metric, f"{value.mean:+.3f} [{value.low:+.3f}, {value.high:+.3f}]", apart]
        )
    return aligned(("difference", "metric", "95 % interval", "excludes 0"), rows)
