"""The house stands: imports point down the floors, and nothing imports in a circle, deferred imports included."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from kbtrain.gates.kind import FIT_GATE
from kbtrain.gates.registry import GATES

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "kbtrain"
WHEEL = ("kbtrain", "data_gen", "recipes", "eval")  # folders that the wheel has

# Each floor imports from lower floors only; rooms of one floor do not import each other.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"installation"}),
    frozenset({"errors", "arrays", "records", "show"}),
    frozenset({"engine", "io", "net"}),
    frozenset({"runtime"}),
    frozenset({"config", "prompts", "answers"}),
    frozenset({"utterances"}),
    frozenset({"gate", "models", "questions"}),
    frozenset({"kernels", "metrics"}),
    frozenset({"llm", "training"}),
    frozenset({"labeling", "retrieval"}),
    frozenset({"dialogue"}),
    frozenset({"gates"}),
    frozenset({"distributed", "rag"}),
    frozenset({"evaluation"}),
    frozenset({"report"}),
    frozenset({"adapters", "demo", "environment", "push", "serve"}),
    frozenset({"commands"}),
    frozenset({"cli"}),
    frozenset({"__main__"}),
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


SAMPLER = PACKAGE / "llm" / "sampler"
SCRIPTS = ("data_gen", "recipes", "eval", "benchmarks", "studies", "tools")


@functools.cache
def sampler_classes() -> dict[str, set[str]]:
    """Classes of the sampler's room but its observers, and the private names of their methods."""
    classes: dict[str, set[str]] = {}
    for path in SAMPLER.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and "sampler" in node.name.lower():
                methods = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
                classes[node.name] = {name for name in methods if name.startswith("_") and not name.endswith("__")}
    return classes


def sampler_intrusions(tree: ast.Module) -> list[str]:
    """Subclasses of a sampler, and uses of a sampler's private method on another object than ``self``."""
    classes = sampler_classes()
    private = set().union(*classes.values())
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
            found += [f"class {node.name}({base})" for base in sorted(bases & set(classes))]
        elif (
            isinstance(node, ast.Attribute) and node.attr in private and ast.unparse(node.value) not in {"self", "cls"}
        ):
            found.append(f"{ast.unparse(node)}, line {node.lineno}")
    return found


def test_the_sampler_s_private_methods_are_used_in_its_room_alone():
    """Others read its passes by observers (:mod:`kbtrain.llm.sampler.observer`)."""
    assert {"LockstepSampler", "BatchSampler", "StateSampler"} <= set(sampler_classes())
    paths = [path for folder in (PACKAGE, *(ROOT / name for name in SCRIPTS)) for path in folder.rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in paths if SAMPLER not in path.parents}
    users = {path: text for path, text in texts.items() if "sampler" in text}
    found = {
        str(path): intrusions for path, text in users.items() if (intrusions := sampler_intrusions(ast.parse(text)))
    }
    assert len(users) > 10 and found == {}


def test_an_intrusion_into_the_sampler_would_be_found():
    code = "class Mine(BatchSampler):\n    def _prefill(self): super()._prefill()\nsampler._draw([])\nself._draw([])"
    expected = ["class Mine(BatchSampler)", "sampler._draw, line 3", "super()._prefill, line 2"]
    assert sampler_intrusions(ast.parse(code)) == expected


def test_a_circle_would_be_found():
    assert circle({"a": {"b"}, "b": {"a"}}) != []
    assert circle({"a": {"b"}, "b": set()}) == []


def test_names_of_back_ends_are_compared_in_their_registry_alone():
    texts = {path: path.read_text(encoding="utf-8") for folder in WHEEL for path in (ROOT / folder).rglob("*.py")}
    found = [str(path) for path, text in texts.items() if re.search(r"\bbackend (==|!=|in|not in) ", text)]
    assert found == [] and len(texts) > 300


def test_no_class_shares_its_name_with_another():
    nodes = (
        node
        for folder in WHEEL
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, n in names.items() if n > 1] == []
