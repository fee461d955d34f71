"""A table of an evaluation: named columns, rows of numbers, shown as text, Markdown or JSON with the same figures."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kbtrain.text_table import aligned

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
    """``note`` says what the numbers are; ``rows`` hold raw values (shares in [0, 1]) in the order of the columns."""

    name: str
    title: str
    note: str
    columns: list[Column]
    rows: list[list[Value]]

    def to_json(self) -> dict[str, Any]:
        """Raw values; undefined is null."""
        columns = [{"name": column.name, "kind": column.kind} for column in self.columns]
        return {"name": self.name, "title": self.title, "note": self.note, "columns": columns, "rows": self.rows}


def shown(value: Value, kind: Kind) -> str:
    """A cell's text; undefined is a dash."""
    if value is None:
        return "-"
    if isinstance(value, str) or kind in ("text", "count"):
        return str(value)
    if kind == "percent":
        return f"{100 * value + 0.0:.1f}"
    if kind == "points":
        return f"{round(100 * value, 1) + 0.0:+.1f}"
    if kind == "change":
        return f"{round(100 * value, 2) + 0.0:+.2f}%"
    return f"{value:.4g}"


def cells(table: Table) -> list[list[str]]:
    """All rows as text."""
    kinds = [column.kind for column in table.columns]
    return [[shown(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in table.rows]


def as_text(table: Table) -> str:
    """For a terminal."""
    return "\n".join([table.title, aligned([column.name for column in table.columns], cells(table)), table.note])


def as_markdown(table: Table) -> str:
    """A Markdown table; texts are escaped."""
    head = [column.name for column in table.columns]
    lines = [head, *cells(table)]
    body = ["| " + " | ".join(map(_escape, line)) + " |" for line in lines]
    body.insert(1, "|---|" + "--:|" * (len(head) - 1))
    return f"## {_escape(table.title)}\n\n" + "\n".join(body) + f"\n\n{_escape(table.note)}\n"


def _escape(text: str) -> str:
    return re.sub(r"([\\`*\[\]#|~])", r"\\\1", html.escape(text, quote=False)).replace("\n", " ")


def beside(table: Table, names: Sequence[str], values: Sequence[Sequence[Value]]) -> Table:
    """The table with further percent columns at its right (the paper's figures beside ours)."""
    columns = [*table.columns, *(Column(name) for name in names)]
    rows = [[*row, *more] for row, more in zip(table.rows, values, strict=True)]
    return Table(table.name, table.title, table.note, columns, rows)
