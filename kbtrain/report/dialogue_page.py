"""The tables and figures of a dialogue evaluation as Markdown and as one self-contained page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbtrain.report.dialogue_layout import DialogueResult
from kbtrain.report.filters import escape_markdown
from kbtrain.report.rendering import page
from kbtrain.report.tables import Table, as_markdown, cells
from kbtrain.svg import COLOURS, new_figure, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Dialogue: which turns need knowledge, and what it does to the responses"
_SHADES = ("ink", "blue", "orange", "green", "red", "purple", "sky")
_MARKS = ("o-", "s--", "^-.", "D:")  # a second mark beside the colour


def position_figure(table: Table) -> str:
    """Figure 3 as lines over the positions."""
    figure, axes = new_figure(6.4, 3.4)
    labels = [str(row[0]) for row in table.rows]
    for i, column in enumerate(table.columns[2:]):
        x = [j for j, row in enumerate(table.rows) if row[2 + i] is not None]
        y = [100 * float(table.rows[j][2 + i] or 0) for j in x]
        colour = COLOURS[_SHADES[i % len(_SHADES)]]
        axes.plot(x, y, _MARKS[i % len(_MARKS)], color=colour, linewidth=1.5, markersize=4, label=column.name)
    axes.set_xticks(range(len(labels)), labels, fontsize=8)
    axes.set_xlabel("relative position in the dialogue")
    axes.set_ylabel("augmented turns (%)")
    _legend(axes, len(table.columns) - 2)
    return render(figure, table.name)


def domain_figure(table: Table) -> str:
    """Figure 4 as bars, one group a domain."""
    names = table.columns[2:]
    figure, axes = new_figure(6.4, max(2.4, 0.16 * len(table.rows) * (len(names) + 1)))
    height = 0.84 / len(names)
    for i, column in enumerate(names):
        y = [j + (i - (len(names) - 1) / 2) * height for j in range(len(table.rows))]
        x = [100 * float(row[2 + i] or 0) for row in table.rows]
        axes.barh(y, x, height=height * 0.92, color=COLOURS[_SHADES[i % len(_SHADES)]], label=column.name)
    axes.set_yticks(range(len(table.rows)), [f"{row[0]} ({row[1]})" for row in table.rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("augmented turns (%)")
    _legend(axes, len(names))
    return render(figure, table.name)


def _legend(axes: Axes, n: int) -> None:
    """Above the drawing, where it hides nothing."""
    place: Any = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0)}
    axes.legend(**place, ncols=min(n, 4), fontsize=8, frameon=False, labelcolor=COLOURS["ink"])


def dialogue_markdown(result: DialogueResult) -> str:
    """Everything but the drawings."""
    head = "\n".join(f"- {escape_markdown(note)}" for note in result.notes)
    missing = "\n".join(f"- {escape_markdown(text)}" for text in result.lacking) or "Nothing."
    body = "\n".join(map(as_markdown, result.tables))
    return f"# {TITLE}\n\n{head}\n\n{body}\n## What is missing\n\n{missing}\n"


def dialogue_html(result: DialogueResult) -> str:
    """One page: everything escaped, nothing loaded."""
    draw = {"figure3": position_figure, "figure4": domain_figure}
    svgs = {table.name: draw[table.name](table) for table in result.tables if table.name in draw}
    shown = [(table, cells(table)) for table in result.tables]
    return page("dialogue.html.j2", svgs=svgs, title=TITLE, tables=shown, notes=result.notes, lacking=result.lacking)
