"""Plain text tables: columns aligned, for terminals and Markdown."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right, two spaces between."""
    table = [list(head), *map(list, rows)]
    widths = [max(_width(row[i]) for row in table) for i in range(len(head))]
    lines = []
    for row in table:
        room = [" " * (width - _width(cell)) for width, cell in zip(widths, row, strict=True)]
        lines.append("  ".join([row[0] + room[0], *(a + b for a, b in zip(room[1:], row[1:], strict=True))]).rstrip())
    return "\n".join(lines)


def _width(text: str) -> int:
    """Columns of a terminal: Chinese characters and full-width forms take two."""
    return len(text) + sum(unicodedata.east_asian_width(character) in "WF" for character in text)


def number(value: float | None, digits: int = 3) -> str:
    """``.512``, ``1.000``, ``-``: shares without the leading zero, undefined as a dash."""
    if value is None:
        return "-"
    text = f"{round(value, digits) + 0.0:.{digits}f}"  # no minus zero
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def p_value(p: float | None) -> str:
    """A probability as :func:`number`, ``<.001`` where that would be ``.000``: none that is tested for is 0."""
    return "<.001" if p is not None and p < 0.0005 else number(p)


def signed(value: float, digits: int = 3) -> str:
    """``+.031`` or ``-.002``."""
    text = number(value, digits)
    return text if text.startswith("-") else f"+{text}"
