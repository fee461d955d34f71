"""Pages of docs/lab are built and linked, but stand in no navigation: without this Sphinx would ask for a toctree."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx


def mark_as_orphan(app: Sphinx, _: nodes.document) -> None:
    if app.env.docname.startswith("lab/"):
        app.env.metadata[app.env.docname]["orphan"] = ""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", mark_as_orphan)
    return {"parallel_read_safe": True}
