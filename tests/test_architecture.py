"""The house is beside the floors of imports, which import-linter checks (pyproject.toml); every test asserts."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from kbtrain.gates.registry import FIT_GATE, GATES, kind_named

ROOT = Path(__file__).resolve().parent.parent
WHEEL = ("kbtrain", "data_gen", "recipes", "eval")  # folders that the wheel has


@pytest.mark.parametrize("name", GATES)
def test_a_kind_of_gate_has_a_room_a_recipe_a_test_and_a_section(name):
    kind = kind_named(name)
    assert (ROOT / kind.made_by).is_file()
    assert kind.made_by != FIT_GATE or kind.fit is not None
    tests = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert any(name in text for text in tests)
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "explanation" / "methods").glob("*.md")]
    assert sum(f"\n## `{name}`\n" in page for page in pages) == 1


def test_names_of_back_ends_are_compared_in_their_registry_alone():
    texts = {path: path.read_text(encoding="utf-8") for folder in WHEEL for path in (ROOT / folder).rglob("*.py")}
    found = [str(path) for path, text in texts.items() if re.search(r"\bbackend (==|!=|in|not in) ", text)]
    assert found == [] and len(texts) > 200


def test_no_class_shares_its_name_with_another():
    nodes = (
        node
        for folder in WHEEL
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, n in names.items() if n > 1] == []


def test_every_test_asserts():
    """What only runs would pass whatever it did; one whose promise is to raise nothing asserts what comes of it."""
    silent = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        silent += [
            f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")
            and not _asserts(node)
        ]
    assert silent == []


def _asserts(test):
    inside = list(ast.walk(test))
    if any(isinstance(node, ast.Assert) for node in inside):
        return True
    called = {ast.unparse(node.func) for node in inside if isinstance(node, ast.Call)}
    return any(name in {"pytest.raises", "pytest.warns"} or ".assert_" in name for name in called)
