"""Notebooks as pages of the site: cells of text as they are, cells of code as Python blocks. Nothing is run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from myst_parser.parsers.sphinx_ import MystParser

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx


class NotebookParser(MystParser):
    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(inputstring)["cells"]]
        texts = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in cells]
        super().parse("\n\n".join(texts), document)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True}
