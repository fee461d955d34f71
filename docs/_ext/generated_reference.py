"""Directive ``generated NAME``: a part of the reference that :mod:`generated` reads from the code at build time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from docutils import nodes
from generated import PAGES, Section
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.application import Sphinx

WIDTHS = {3: (20, 25, 55), 4: (20, 20, 15, 45)}


class Generated(SphinxDirective):
    required_arguments: ClassVar[int] = 1

    def run(self) -> list[nodes.Node]:
        return [_section(section) for section in PAGES[self.arguments[0]]()]


def _section(content: Section) -> nodes.section:
    section = nodes.section(ids=[nodes.make_id(content.title)], names=[content.title])
    section += nodes.title(content.title, content.title)
    section += nodes.paragraph("", content.about)
    if content.text:
        section += nodes.literal_block(content.text, content.text)
    if content.rows:
        table = nodes.table()
        group = nodes.tgroup(cols=len(content.head))
        group += [nodes.colspec(colwidth=width) for width in WIDTHS[len(content.head)]]
        group += nodes.thead("", _row(content.head, code=0))
        group += nodes.tbody("", *(_row(row, code=len(row) - 1) for row in content.rows))
        table += group
        section += table
    return section


def _row(cells: Sequence[str], code: int) -> nodes.row:
    return nodes.row("", *_entries(cells, code))


def _entries(cells: Sequence[str], code: int) -> Iterator[nodes.entry]:
    """Cells of a row; the first ``code`` of them as code."""
    for place, text in enumerate(cells):
        shown = nodes.literal(text, text) if place < code and text else nodes.Text(text)
        yield nodes.entry("", nodes.paragraph("", "", shown))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("generated", Generated)
    return {"parallel_read_safe": True}
