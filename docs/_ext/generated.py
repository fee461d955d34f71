"""Contents of the reference, read from the code: commands, keys of scripts and of the server, routes, file formats."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from kbtrain import cli, jsonl, records
from kbtrain.config import Config, key_rows
from kbtrain.scripts import about, shipped
from kbtrain.serve.config import ServeConfig

Row = tuple[str, ...]
ROUTES = Path(cli.__file__).parent / "serve" / "openapi.yaml"
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


class Section(NamedTuple):
    """A section of a reference page: a title, a sentence, and either a text as it is or a table below a head."""

    title: str
    about: str
    text: str = ""
    head: Row = ()
    rows: tuple[Row, ...] = ()


def commands() -> Iterator[Section]:
    """Each command of ``kbtrain`` with its help."""
    os.environ["COLUMNS"] = "100"
    parser = cli._parser()
    for name, command in _subcommands(parser):
        text = command.format_help()
        if name in ("serve", "mcp"):
            text = text.partition("\n\n")[0] + "\n\nIts keys: see the page on settings of the server."
        summary = (command.description or "").partition("\n")[0]
        yield Section(f"kbtrain {name}", summary, text=text)


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    (actions,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for name, command in actions.choices.items():
        yield name, command
        if any(isinstance(a, argparse._SubParsersAction) for a in command._actions):
            yield from ((f"{name} {below}", other) for below, other in _subcommands(command))


def script_keys() -> Iterator[Section]:
    """Each stage and recipe with its keys."""
    for path in shipped("stages", "recipes").values():
        yield _keys(f"{path.parent.name}/{path.name}", about(path), config_of(path))


def serve_keys() -> Iterator[Section]:
    yield _keys(
        "kbtrain serve", "Keys of the server; kbtrain mcp takes those of gate, search and deadlines.", ServeConfig
    )


def _keys(title: str, summary: str, kind: type[Config]) -> Section:
    return Section(title, summary, head=("key", "values", "default", "meaning"), rows=tuple(key_rows(kind)))


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


def routes() -> Iterator[Section]:
    """Each route of the server from its OpenAPI document: fields of the request, statuses of the reply."""
    document = yaml.safe_load(ROUTES.read_text(encoding="utf-8"))
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            if not isinstance(route, dict) or "responses" not in route:
                continue
            fields = [("request", name, _type(schema)) for name, schema in _properties(route).items()]
            replies = [
                ("reply", str(status), _description(reply, document)) for status, reply in route["responses"].items()
            ]
            rows = tuple((*fields, *replies))
            yield Section(
                f"{method.upper()} {path}", route.get("summary", ""), head=("part", "name", "what"), rows=rows
            )


def _properties(route: dict[str, Any]) -> dict[str, Any]:
    content = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    found: dict[str, Any] = content.get("schema", {}).get("properties", {})
    return found


def _type(schema: dict[str, Any]) -> str:
    kind = schema.get("type") or schema.get("$ref", "").rpartition("/")[2] or "one of several forms"
    words = " or ".join(kind) if isinstance(kind, list) else str(kind)
    return f"{words}; {schema['description']}" if "description" in schema else words


def _description(reply: dict[str, Any], document: dict[str, Any]) -> str:
    if "$ref" in reply:
        reply = document["components"]["responses"][reply["$ref"].rpartition("/")[2]]
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


PAGES = {
    "commands": commands,
    "script-keys": script_keys,
    "serve-keys": serve_keys,
    "routes": routes,
    "file-formats": file_formats,
}
