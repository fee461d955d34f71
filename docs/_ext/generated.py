"""Contents of the reference, read from the code: commands, keys, routes, file formats, the Python interface.

As Sphinx reads a page, ``<!-- generated: NAME -->`` is replaced by the text of that name. Signatures and docstrings
are autodoc's.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

from examples import EXAMPLES as OF_NAMES
from prometheus_client.metrics import MetricWrapperBase

import kbtrain
from kbtrain import cli, records
from kbtrain.config import Config, key_rows
from kbtrain.io import jsonl
from kbtrain.runtime.scripts import about, shipped
from kbtrain.serve import app
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.decision_log import Metrics

if TYPE_CHECKING:
    from sphinx.application import Sphinx

Row = tuple[str, ...]
FORMATS = {
    "questions.jsonl": records.Question,
    "passages.jsonl": records.Passage,
    "evidence.jsonl": records.Evidence,
    "labels.jsonl": records.Label,
    "examples/*.jsonl": records.GateExample,
    "scores/*.jsonl": records.GateScore,
    "outcomes.jsonl": records.Outcome,
    "turns.jsonl": records.TurnExample,
    "what kbtrain decide prints": records.Decision,
}
# a line of a file, where few fields show what it holds
EXAMPLES = (
    records.Question(id="q1", text="Who wrote Faust?", answers=("Goethe",), split="train", dataset="mine"),
    records.Passage(id="p1", title="Faust", text="Faust is a play by Goethe."),
    records.Evidence(
        "q1", "bm25", "Who wrote Faust?", (records.Hit("p1", "Faust", "Faust is a play by Goethe.", 7.5),)
    ),
    records.GateScore(question_id="q1", gate="features_benefit", score=0.42),
    records.Outcome("q1", "test", None, True, True, 0.75, 1.0, 12, 9),
)
MODULES = (  # behind the public names
    *("gate.gate", "gate.card", "gates.registry", "gates.handles", "rag.use", "records"),
    *("answers.grading", "labeling.label", "metrics.ranking", "metrics.thresholds", "metrics.significance"),
    "evaluation.results",
)


class Section(NamedTuple):
    """A section of a reference page: a title, a text, and a literal text or a table below a head, or both."""

    title: str
    about: str
    text: str = ""
    head: Row = ()
    rows: tuple[Row, ...] = ()
    example: str = ""


def _render(section: Section) -> str:
    parts = [f"## {_plain(section.title)}", _plain(section.about)]
    if section.text:
        kind = "{eval-rst}" if section.text.startswith("..") else "json" if section.text.startswith("{") else "text"
        parts.append(f"```{kind}\n{section.text.strip()}\n```")
    if section.example:
        parts.append(f"```pycon\n{section.example.strip()}\n```")
    if section.rows:
        rows = [section.head, ("---",) * len(section.head), *map(_cells, section.rows)]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(filter(None, parts))


def _cells(row: Row) -> Row:
    """Cells of a table in Markdown; all but the last one as code."""
    *names, meaning = row
    cells = [*(_code(name) if name else "" for name in names), " ".join(_plain(meaning).split())]
    return tuple(cell.replace("|", "\\|") for cell in cells)


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _plain(text: str) -> str:
    """Text of a docstring or a help as Markdown: roles and double backticks are code, other marks are escaped."""
    text = re.sub(r":\w+:`[~.]*([^`]+)`|``(.+?)``", lambda match: _code(match[1] or match[2]), text, flags=re.DOTALL)
    parts = re.split(r"(`+[^`]+`+)", text)
    parts[::2] = [re.sub(r"[\\*<\[~]|(?<!\w)_|_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
    return "".join(parts)


def commands() -> Iterator[Section]:
    """Each command of ``kbtrain`` with its arguments."""
    for name, command in _subcommands(cli._parser()):
        summary, _, more = (command.description or "").partition("\n")
        epilog = command.epilog or ""
        actions = [a for a in command._actions if not isinstance(a, argparse._HelpAction | argparse._SubParsersAction)]
        if name in ("serve", "mcp"):
            epilog, actions = "Its keys: see the page on settings of the server.", []
        layout = argparse.HelpFormatter(command.prog, width=10_000)  # the terminal's width does not matter
        layout.add_usage(command.usage, command._actions, command._mutually_exclusive_groups)
        usage = " ".join(layout.format_help().split())
        text = "\n\n".join(filter(None, (usage, more.strip("\n"), epilog)))
        rows = tuple(_argument(command, action) for action in actions)
        yield Section(f"kbtrain {name}", summary, text=text, head=("argument", "meaning"), rows=rows)


def _argument(command: argparse.ArgumentParser, action: argparse.Action) -> Row:
    """An argument with its value as the usage names it, and its help."""
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest)
    if action.option_strings:
        value = "" if action.nargs == 0 else value if action.metavar or action.choices else value.upper()
        value = f"{', '.join(action.option_strings)} {value}".strip()
    help_text = command._get_formatter()._expand_help(action) if action.help else ""
    return str(value), help_text


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    (actions,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for name, command in actions.choices.items():
        yield name, command
        if any(isinstance(a, argparse._SubParsersAction) for a in command._actions):
            yield from ((f"{name} {below}", other) for below, other in _subcommands(command))


def script_keys(folder: str) -> Iterator[Section]:
    """Each stage or recipe of a folder with its keys."""
    for path in (path for path in shipped("stages", "recipes").values() if path.parent.name == folder):
        yield _keys(f"kbtrain run {path.stem}", about(path), config_of(path))


def serve_keys() -> Iterator[Section]:
    yield _keys(
        "kbtrain serve", "Keys of the server; kbtrain mcp takes those of gate, search and deadlines.", ServeConfig
    )


def _keys(title: str, summary: str, kind: type[Config]) -> Section:
    return Section(title, summary, head=("key", "values", "default", "meaning"), rows=tuple(key_rows(kind)))


def config_of(script: Path) -> type[Config]:
    """The config class that a script's ``main`` reads."""
    spec = importlib.util.spec_from_file_location(f"keys_{script.stem}", script)
    if spec is None or spec.loader is None:
        raise ImportError(f"{script}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pydantic looks there for the types of a config's fields
    spec.loader.exec_module(module)
    own: type[Config] = get_type_hints(module.main)["config"]
    return own


def routes() -> Iterator[Section]:
    """Each route of the server from its OpenAPI document: fields of the request, statuses of the reply."""
    document = app.document()
    for path, methods in document["paths"].items():
        own = {method: route for method, route in methods.items() if isinstance(route, dict) and "responses" in route}
        same = len({id(route) for route in own.values()}) == 1  # one route by an anchor
        for method, route in own.items() if not same else [(", ".join(own), next(iter(own.values())))]:
            fields = [("request", name, _type(schema)) for name, schema in _properties(route, document).items()]
            statuses: dict[str, list[str]] = {}
            for status, reply in route["responses"].items():
                statuses.setdefault(_description(reply), []).append(str(status))
            replies = [("reply", ", ".join(same), meaning) for meaning, same in statuses.items()]
            rows = tuple((*fields, *replies))
            yield Section(
                f"{method.upper()} {path}",
                route.get("summary", ""),
                head=("part", "name", "what"),
                rows=rows,
            )


def server_metrics() -> Iterator[Section]:
    """Metrics of the server, from its registry."""
    rows = tuple(
        (f"{metric.name}_total" if metric.type == "counter" else metric.name, metric.type, labels, metric.documentation)
        for metric, labels in _metrics()
    )
    yield Section(
        "Metrics of the server",
        "At `/metrics`, for Prometheus.",
        head=("metric", "type", "labels", "meaning"),
        rows=rows,
    )


def _metrics() -> Iterator[tuple[Any, str]]:
    for one in vars(Metrics()).values():
        if isinstance(one, MetricWrapperBase):
            (metric,) = one.describe()
            yield metric, ", ".join(one._labelnames)


def _properties(route: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    content = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = content.get("schema", {})
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    found: dict[str, Any] = schema.get("properties", {})
    return found


def _type(schema: dict[str, Any]) -> str:
    kind = schema.get("type") or schema.get("$ref", "").rpartition("/")[2] or "one of several forms"
    words = " or ".join(kind) if isinstance(kind, list) else str(kind)
    return f"{words}; {schema['description']}" if "description" in schema else words


def _description(reply: dict[str, Any]) -> str:
    return " ".join(str(reply.get("description", "")).split())


def file_formats() -> Iterator[Section]:
    """Each file of a run folder with the fields of a line."""
    for file, kind in FORMATS.items():
        summary = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        rows = tuple((field.name, str(field.type), _default(field)) for field in dataclasses.fields(kind))
        line = next((jsonl.dump(example) for example in EXAMPLES if isinstance(example, kind)), "")
        yield Section(file, summary, text=line, head=("field", "type", "default"), rows=rows)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    return "empty" if field.default_factory is not dataclasses.MISSING else "required"


def public_names() -> Iterator[Section]:
    """Each name of ``kbtrain.__all__`` with its signature, its docstring and its members."""
    for name in sorted(set(kbtrain.__all__) - {"__version__"}):
        module = f"kbtrain.{kbtrain._MODULE_OF.get(name, 'records')}"
        kind = "class" if isinstance(getattr(kbtrain, name), type) else "function"
        yield Section(name, "", _autodoc(kind, f"{module}.{name}"), example=OF_NAMES[name])


def modules() -> Iterator[Section]:
    """Each module behind the public names."""
    for module in MODULES:
        yield Section(f"kbtrain.{module}", "", _autodoc("module", f"kbtrain.{module}"))


def _autodoc(kind: str, name: str) -> str:
    members = "" if kind == "function" else "\n   :members:"
    return f".. auto{kind}:: {name}\n   :no-index:{members}"


PAGES = {
    "commands": commands,
    **{f"keys-{folder}": partial(script_keys, folder) for folder in ("data_gen", "recipes", "eval")},
    "serve-keys": serve_keys,
    "routes": routes,
    "server-metrics": server_metrics,
    "file-formats": file_formats,
    "public-names": public_names,
    "modules": modules,
}


def fill(app: Sphinx, name: str, source: list[str]) -> None:
    """Put the generated texts into a page that names them."""
    source[0] = re.sub(
        r"<!-- generated: ([\w-]+) -->", lambda match: "\n\n".join(map(_render, PAGES[match[1]]())), source[0]
    )


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", fill)
    return {"parallel_read_safe": True}
