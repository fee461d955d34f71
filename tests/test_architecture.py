"""The house stands: imports point down the floors, and nothing imports in a circle, deferred imports included."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from kbtrain.gates.registry import FIT_GATE, GATES

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "kbtrain"

# Each floor imports from lower floors only; rooms of one floor do not import each other.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"cores", "garbage", "installation"}),
    frozenset({"arrays", "errors", "event_loop", "progress", "records", "servers", "svg", "text_table"}),
    frozenset({"engine", "files", "scripts"}),
    frozenset({"text_files"}),
    frozenset({"exit_code", "preloaded", "stage_process"}),
    frozenset({"config", "credentials", "jsonl", "provenance", "prompts", "answers"}),
    frozenset({"utterances"}),
    frozenset({"io"}),
    frozenset({"store", "gate", "models", "questions"}),
    frozenset({"trained_on"}),
    frozenset({"hub", "kernels", "metrics"}),
    frozenset({"llm", "training"}),
    frozenset({"labeling", "retrieval"}),
    frozenset({"dialogue"}),
    frozenset({"gates"}),
    frozenset({"distributed", "rag"}),
    frozenset({"evaluation"}),
    frozenset({"report"}),
    frozenset({"adapters", "config_check", "demo", "environment", "push", "serve"}),
    frozenset({"commands"}),
    frozenset({"cli"}),
)

# Imports that still point up or sideways: this list may only shrink.
EXCEPTIONS: frozenset[tuple[str, str]] = frozenset()


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below ``kbtrain``; the package's own file is no room."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = path
    return found


def imports(path: Path, known: Mapping[str, Path]) -> set[str]:
    """Modules that the file imports anywhere: at the top, in a function, or for its types only."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "kbtrain":
            source = node.module.removeprefix("kbtrain").removeprefix(".")
            names = (f"{source}.{alias.name}".removeprefix(".") for alias in node.names)
            found |= {name if name in known else source for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("kbtrain.") for alias in node.names if alias.name.startswith("kbtrain.")}
    return found & set(known)


@functools.cache
def graph() -> dict[str, set[str]]:
    """Which module imports which."""
    known = modules()
    return {name: imports(path, known) - {name} for name, path in known.items()}


def room(module: str) -> str:
    """The folder or file at the package's root that a module belongs to."""
    return module.split(".")[0]


def circle(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """One circle of the graph, empty if there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_module_stands_on_a_floor():
    placed = [name for floor in FLOORS for name in floor]
    assert len(placed) == len(set(placed))
    assert {room(module) for module in modules()} == set(placed)


def test_imports_point_down_the_floors():
    floor = {name: level for level, names in enumerate(FLOORS) for name in names}
    upward = {
        (module, target)
        for module, targets in graph().items()
        for target in targets
        if room(target) != room(module) and floor[room(target)] >= floor[room(module)]
    }
    assert upward == EXCEPTIONS


def test_no_circle_among_files_or_folders():
    files = {module: {t for t in targets if (module, t) not in EXCEPTIONS} for module, targets in graph().items()}
    assert len(files) > 150
    assert circle(files) == []
    folders: dict[str, set[str]] = defaultdict(set)
    for module, targets in files.items():
        folders[room(module)] |= {room(target) for target in targets} - {room(module)}
    assert circle(folders) == []


@pytest.mark.parametrize("name", GATES)
def test_a_kind_of_gate_has_a_room_a_recipe_a_test_and_a_section(name):
    kind = GATES[name]
    module = kind.open.__module__ if kind.open.__module__ != "kbtrain.gates.registry" else kind.card.__module__
    assert module.startswith("kbtrain.gates.")
    assert (ROOT / kind.made_by).is_file()
    assert kind.made_by != FIT_GATE or kind.fit is not None
    assert list((ROOT / "tests").rglob(f"test_*{name}*.py"))
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "explanation" / "methods").glob("*.md")]
    assert sum(f"\n## `{name}`\n" in page for page in pages) == 1


def test_a_circle_would_be_found():
    assert circle({"a": {"b"}, "b": {"a"}}) != []
    assert circle({"a": {"b"}, "b": set()}) == []
