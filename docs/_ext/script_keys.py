"""Directive ``script-keys``: every key of every stage and recipe, read from the config classes that the scripts use."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from kbtrain.config import Config, key_rows
from kbtrain.scripts import about, shipped

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def config_of(script: Path) -> type[Config]:
    """The config class that a script defines."""
    spec = importlib.util.spec_from_file_location(f"keys_{script.stem}", script)
    if spec is None or spec.loader is None:
        raise ImportError(f"{script}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pydantic looks there for the types of a config's fields
    spec.loader.exec_module(module)
    (own,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Config) and value.__module__ == spec.name
    )
    return own


class ScriptKeys(SphinxDirective):
    """A section for each script: what it does, then its keys with values, default and meaning."""

    def run(self) -> list[nodes.Node]:
        return [self._section(path) for path in shipped("stages", "recipes").values()]

    def _section(self, path: Path) -> nodes.section:
        name = f"{path.parent.name}/{path.name}"
        section = nodes.section(ids=[nodes.make_id(name)], names=[name])
        section += nodes.title(name, name)
        section += nodes.paragraph("", about(path))
        table = nodes.table()
        group = nodes.tgroup(cols=4)
        group += [nodes.colspec(colwidth=width) for width in (20, 20, 15, 45)]
        group += nodes.thead("", _row(("key", "values", "default", "meaning"), code=()))
        group += nodes.tbody("", *(_row(row, code=(0, 1, 2)) for row in key_rows(config_of(path))))
        section += table
        table += group
        return section


def _row(cells: tuple[str, ...], code: tuple[int, ...]) -> nodes.row:
    return nodes.row("", *_entries(cells, code))


def _entries(cells: tuple[str, ...], code: tuple[int, ...]) -> Iterator[nodes.entry]:
    for place, text in enumerate(cells):
        shown = nodes.literal(text, text) if place in code and text else nodes.Text(text)
        yield nodes.entry("", nodes.paragraph("", "", shown))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("script-keys", ScriptKeys)
    return {"parallel_read_safe": True}
