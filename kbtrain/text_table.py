"""Plain text tables: columns aligned, for terminals and Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right, two spaces between."""
    table = [list(head), *map(list, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = ("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in table)
    return "\n".join(line.rstrip() for line in lines)


def number(value: float | None, digits: int = 3) -> str:
    """``.512``, ``1.000``, ``-``: shares without the leading zero, undefined as a dash."""
    if value is None:
        return "-"
    text = f"{round(value, digits) + 0.0:.{digits}f}"  # no minus zero
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def signed(value: float, digits: int = 3) -> str:
    """``+.031`` or ``-.002``."""
    text = number(value, digits)
    return text if text.startswith("-") else f"+{text}"
