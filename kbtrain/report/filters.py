"""How the templates show values: numbers, table cells, and texts that Markdown must not read."""

from __future__ import annotations

import html
import json
import re

from kbtrain.text_table import number, signed


def escape_markdown(text: object) -> str:
    """Text that a Markdown reader shows as it is: no tag, no emphasis, no link, no new table cell or line."""
    escaped = re.sub(r"([\\`*\[\]#|~]|(?<!\w)_|_(?!\w))", r"\\\1", html.escape(str(text), quote=False))
    return escaped.replace("\r", "").replace("\n", "<br>")


def cell(value: object) -> str:
    """A value of the meta data as short text."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


FILTERS = {"number": number, "signed": signed, "md": escape_markdown, "cell": cell}
