"""The notebooks of docs/ run from top to bottom, with the real model, and end as their text says."""

import json
from pathlib import Path

import pytest
from support import scripts

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


def code_of(notebook):
    """The cells of code in their order; they hold no shell lines and no magic."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_its_cells_printed(notebook):
    outputs = [output for cell in code_of(notebook) for output in cell["outputs"]]
    assert len(outputs) == len(code_of(notebook))
    assert {output["name"] for output in outputs} == {"stdout"}


def test_the_first_gate_searches_for_what_the_model_does_not_know(tmp_path):
    file = tmp_path / "cells.py"
    cells = code_of(ROOT / "docs" / "tutorials" / "first_gate.ipynb")
    file.write_text("\n".join("".join(cell["source"]) for cell in cells), encoding="utf-8")
    done = scripts.run(file, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum("mastery" in line for line in lines) == 2
    printed = [line for line in lines if not line.startswith("[")]  # without DeepSpeed's warning
    assert len(printed) == sum(len(output["text"]) for cell in cells for output in cell["outputs"])
    assert lines[-2].startswith("plain -> ") and "Paris" in lines[-2]
    assert lines[-1].startswith("searched -> ") and "Thimphu" in lines[-1]
