"""Text tables and number formats for terminals and Markdown; figures as inline SVG.

A figure has the same bytes every time, colours from the page (light and dark), and text in the page's font.
"""

from __future__ import annotations

import functools
import io
import re
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import LayoutEngine


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right, two spaces between."""
    table = [list(head), *map(list, rows)]
    widths = [max(_width(row[i]) for row in table) for i in range(len(head))]
    lines = []
    for row in table:
        room = [" " * (width - _width(cell)) for width, cell in zip(widths, row, strict=True)]
        lines.append("  ".join([row[0] + room[0], *(a + b for a, b in zip(room[1:], row[1:], strict=True))]).rstrip())
    return "\n".join(lines)


def aligned_block(lines: Mapping[str, str]) -> list[str]:
    """Names in one column, what is said of each beside it."""
    width = max(map(len, lines))
    return [f"{name.ljust(width)}  {text}" for name, text in lines.items()]


def _width(text: str) -> int:
    """Columns of a terminal: Chinese characters and full-width forms take two."""
    return len(text) + sum(unicodedata.east_asian_width(character) in "WF" for character in text)


def number(value: float | None, digits: int = 3) -> str:
    """``.512``, ``1.000``, ``-``: shares without the leading zero, undefined as a dash."""
    if value is None:
        return "-"
    text = f"{round(value, digits) + 0.0:.{digits}f}"  # no minus zero
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def count_of(n: int, noun: str, ending: str = "s") -> str:
    """``1 question`` or ``3 questions``; ``ending``: that of the plural."""
    return f"{n} {noun}{ending * (n != 1)}"


def first_ids(ids: Sequence[str], unit: str = "question") -> str:
    """ "3 questions (a, b, c)" or "7 questions (a, b, c, ...)"."""
    more = ", ..." if len(ids) > 3 else ""
    return f"{count_of(len(ids), unit)} ({', '.join(ids[:3])}{more})"


def p_value(p: float | None) -> str:
    """A probability as :func:`number`, ``<.001`` where that would be ``.000``: none that is tested for is 0."""
    return "<.001" if p is not None and p < 0.0005 else number(p)


def signed(value: float) -> str:
    """``+.031`` or ``-.002``."""
    text = number(value)
    return text if text.startswith("-") else f"+{text}"


# Okabe and Ito's palette, safe for the colour-blind; the page may lighten a colour for a dark background
COLOURS = {
    "blue": "#0072b2", "orange": "#e69f00", "green": "#009e73", "red": "#d55e00", "purple": "#cc79a7", "sky": "#56b4e9",
    "grey": "#8c8c8c", "ink": "#1b1b1f", "grid": "#d7d7dc",
    "paper": "#fefefe",  # not quite white, which matplotlib's own defaults are full of
}  # fmt: skip
FILE_WIDTH = 5.0  # inches of a figure in a file: its text is legible on a phone, which shows it at three quarters
_PAD = 0.04  # inches around all
_MOST = 0.9  # of the figure may be labels
_RC: Any = {"svg.hashsalt": "kbtrain", "svg.fonttype": "none", "font.size": 10.0, "axes.linewidth": 0.8}


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure (inches) with one plain pair of axes, without matplotlib's global state."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_RC):
        figure = Figure(figsize=(width, height), layout=_one_pass())
        axes = figure.subplots()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(COLOURS["ink"])
    axes.tick_params(colors=COLOURS["ink"], labelsize=9)
    for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
        label.set_color(COLOURS["ink"])
    axes.grid(axis="y", color=COLOURS["grid"], linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def legend_above(axes: Axes, columns: int, size: float = 9) -> None:
    """A legend above the axes, where it covers no data."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, fontsize=size, frameon=False,
                labelcolor=COLOURS["ink"], borderaxespad=0.2, columnspacing=1.4, handletextpad=0.5)  # fmt: skip


@functools.cache
def _one_pass() -> LayoutEngine:
    """Margins that just hold what stands around the only pair of axes. All is measured once: matplotlib's own layouts
    do so twice, a quarter of a report's time."""
    from matplotlib.layout_engine import LayoutEngine

    class OnePass(LayoutEngine):
        _adjust_compatible, _colorbar_gridspec = True, False

        def execute(self, fig: Figure) -> None:
            (axes,) = fig.axes
            around, inside, pad = axes.get_tightbbox(), axes.bbox, _PAD * fig.dpi
            assert around is not None  # axes that are not drawn have none
            left, right = inside.x0 - around.x0 + pad, around.x1 - inside.x1 + pad
            bottom, top = inside.y0 - around.y0 + pad, around.y1 - inside.y1 + pad
            x = min(1 / fig.bbox.width, _MOST / (left + right))  # a label may be longer than the figure is wide
            y = min(1 / fig.bbox.height, _MOST / (bottom + top))
            fig.subplots_adjust(left=left * x, right=1 - right * x, bottom=bottom * y, top=1 - top * y)

    return OnePass()


def page(figure: Figure) -> str:
    """Its own file, on a white ground: the same bytes for the same figure."""
    return _draw_svg(figure, transparent=False)


def _draw_svg(figure: Figure, transparent: bool) -> str:
    """The figure as an SVG document. Its layout is solved here: savefig would draw all of it once more to do so."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    text = io.StringIO()
    with rc_context(_RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the page's own fonts draw the text
        FigureCanvasSVG(figure)  # its measures of texts
        if (engine := figure.get_layout_engine()) is not None:
            engine.execute(figure)
            figure.set_layout_engine(None)  # not "none", whose placeholder is drawn for as well
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=transparent)
    return text.getvalue()


def render(figure: Figure, name: str) -> str:
    """The ``<svg>`` element; ``name`` keeps its ids apart from those of other figures on the page."""
    text = _draw_svg(figure, transparent=True)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r"font: (?:[a-z]+ )*([\d.]+)px [^;\"]+", r"font-size: \1px", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r'\1 aria-hidden="true"', text, count=1)  # the caption says it
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    for colour, value in COLOURS.items():
        text = text.replace(value, f"var(--{colour})")
    return text
