"""Type of a key that names several folders or files, each once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator


def _each_once(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Raise ValueError for a folder or file that is named twice: its records would count twice."""
    places = [os.path.realpath(path) for path in paths]  # Path.resolve() raises at links that lead in a circle
    twice = next((path for i, path in enumerate(paths) if places[i] in places[:i]), None)
    if twice is not None:
        raise ValueError(f"duplicate '{twice}'; name it once")
    return paths


DifferentPaths = Annotated[tuple[Path, ...], AfterValidator(_each_once)]  # of a key whose records are taken together
