"""Every test asserts something."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


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


def _asserts(test: ast.AST) -> bool:
    inside = list(ast.walk(test))
    if any(isinstance(node, ast.Assert) for node in inside):
        return True
    called = {ast.unparse(node.func) for node in inside if isinstance(node, ast.Call)}
    return any(name in {"pytest.raises", "pytest.warns"} or ".assert_" in name for name in called)
