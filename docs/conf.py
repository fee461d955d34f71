"""Sphinx's settings: `make docs` builds the pages of this folder into docs/_build/html, to be read without a server."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

from kbtrain import __version__  # noqa: E402 - the clone's own

project = "kbtrain"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "generated", "outside_links", "notebook_page"]
autodoc_typehints = "signature"
exclude_patterns = ["_build", "_ext"]
highlight_language = "sh"  # most blocks are commands
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_js_files = [("copy.js", {"defer": "defer"})]
html_title = f"kbtrain {release}"
html_show_copyright = False
html_copy_source = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3  # [text](page.md#a-headline), as on GitHub
myst_links_external_new_tab = False
