"""Links from a page to files of the clone that are not on the site become the file's path."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from blocks import ROOT

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")


def name_files(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace each link that leaves the folder of the pages by its text and the file's path."""
    folder, site = Path(app.env.doc2path(page)).parent, Path(app.srcdir)

    def replace(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        outside = target.is_relative_to(ROOT) and not target.is_relative_to(site)
        return f"{match[1]} (`{target.relative_to(ROOT)}`)" if outside else match[0]

    source[0] = LINK.sub(replace, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", name_files)
    return {"parallel_read_safe": True}
