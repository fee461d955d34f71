"""Templates to text: pages with inline styles and one script that the page's own policy allows, by its hash."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
SCRIPT = _HERE / "page.js"


def render(template: str, autoescape: bool, **values: Any) -> str:
    """Fill a template of this folder; a name that it uses and nobody gave is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from kbtrain.report.filters import FILTERS

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= FILTERS
    text: str = environment.get_template(template).render(**values)
    return text


def page(template: str, **values: Any) -> str:
    """A page: everything escaped but the SVG figures (values named ``svgs``), nothing loaded, one script inline."""
    from markupsafe import Markup

    script = SCRIPT.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    svgs = {name: Markup(svg) for name, svg in values.pop("svgs", {}).items()}
    return render(template, True, svgs=svgs, script=Markup(script), script_hash=f"sha256-{digest}", **values)
