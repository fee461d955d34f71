"""Docstrings name their subject: the first line is no question and no riddle; and every test asserts something."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("kbtrain", "data_gen", "recipes", "eval")
RIDDLE = re.compile(r"(What|Whether|How|Which|Where|Who|Why|When|Does)\b|.*\?$")


def first_lines() -> Iterator[tuple[str, str]]:
    """(place, first line) of every docstring of the package and its scripts."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    text = ast.get_docstring(node)
                    if text:
                        yield f"{path.relative_to(ROOT)}:{node.body[0].lineno}", text.splitlines()[0]


def test_no_docstring_begins_with_a_question():
    lines = dict(first_lines())
    assert len(lines) > 1000
    assert [f"{place}: {line}" for place, line in lines.items() if RIDDLE.match(line)] == []


def test_a_question_would_be_found():
    assert RIDDLE.match("Whether it holds.") and RIDDLE.match("Does it hold?") and RIDDLE.match("A line: is it long?")
    assert not RIDDLE.match("True if it holds.") and not RIDDLE.match("Whole texts.")


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
