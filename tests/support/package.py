"""A package of one module with its own gate, as others write one, installed by pip from its sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "{project}"
version = "1.0"
[project.entry-points."kbtrain.gates"]
{module} = "{module}:KIND"
[tool.setuptools]
py-modules = ["{module}"]
"""


def installed_gate(folder: Path, module: str, source: str) -> Path:
    """A site folder in ``folder`` with the package whose module has the source and a ``KIND``."""
    sources, site = folder / "package", folder / "site"
    sources.mkdir()
    (sources / "pyproject.toml").write_text(PYPROJECT.format(project=module.replace("_", "-"), module=module))
    (sources / f"{module}.py").write_text(source)
    command = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site), str(sources)]
    subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True, text=True)
    return site
